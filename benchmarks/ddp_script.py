"""The other sides of the data-parallel benchmark: torchrun's DDP, and one process.

    torchrun --standalone --nproc-per-node 2 -m benchmarks.ddp_script WORK.json
    python -m benchmarks.ddp_script WORK.json

The loop that people write for `DistributedDataParallel`: every rank takes its part of each batch.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from benchmarks.workload import BareLoop, Mlp, build, save_weights, weights_of
from cerebro.mop.order import shard_at


def main(file: str) -> None:
    work = json.loads(Path(file).read_text())
    torch.set_num_threads(1)
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    loop, params = BareLoop(work["data"]), work["params"]
    model, optimizer = build(0, params)
    trained = model
    if world > 1:
        distributed.init_process_group("gloo", timeout=timedelta(seconds=60))
        trained = DistributedDataParallel(model)
    shards = len(loop.rows)
    for epoch in range(work["epochs"]):
        for step in range(shards):
            shard = shard_at(0, epoch, step, shards)
            _visit(loop, trained, optimizer, params, shard, epoch, (rank, world))
    if rank == 0:
        save_weights(work["out"], weights_of(model))
    if world > 1:
        # A rank that leaves while another is still at work takes that with it.
        distributed.barrier()
        del trained
        distributed.destroy_process_group()
        sys.stdout.flush()
        os._exit(0)


def _visit(loop, model, optimizer, params, shard, epoch, place):
    rank, world = place
    size = params["batch_size"]
    order, tensors = loop.order(shard, size, 0, epoch), loop.tensors[shard]
    index = torch.from_numpy(np.ascontiguousarray(order, np.int64))
    loss_of = Mlp().loss
    for start in range(0, len(order), size):
        rows = index[start : start + size]
        first, last = rank * len(rows) // world, (rank + 1) * len(rows) // world
        part = rows[first:last]
        batch = {name: tensor.index_select(0, part) for name, tensor in tensors.items()}
        loss = loss_of(model, batch, params)
        # The number that a progress line shows.
        loss.item()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main(sys.argv[1])
