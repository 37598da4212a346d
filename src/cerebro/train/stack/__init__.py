"""Stacks: trials of one structure trained as one, each with its own numbers, seed and batches.

From the top: `survey` says which trials go together and `cost` what that saves; `trainer` runs
visits, on the CPU (`host`) or as captured steps on CUDA (`cuda`, `machine`); `trace` turns the
user's model and loss into operations on whole stacks, which `program` follows by an update
(`optim`) and `conv` does convolutions for.
"""
