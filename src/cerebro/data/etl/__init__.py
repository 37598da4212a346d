"""From raw rows to shards: what is prepared, by whom, and one shard of it."""
