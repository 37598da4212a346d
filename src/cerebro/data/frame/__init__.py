"""From the rows of a distributed table to shards: each part is dealt out, then each shard made."""
