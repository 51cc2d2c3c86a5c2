"""A rank that tries every collective on npu tensors: `python -m support.npu_standin.collectives RANK HOSTS`.

Prints what each gave, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator

from engines.torch import npu

npu.settle(f"npu:{sys.argv[1]}")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

from engines.contract import GroupSpec  # noqa: E402
from engines.torch.group import TorchGroup, connect  # noqa: E402


def results(group: TorchGroup) -> Iterator[tuple[str, object]]:
    data, device, rank = group.data, group.device, group.rank
    yield "device", f"{device} of {torch.npu.current_device()}"
    mine = torch.arange(4, device=device, dtype=torch.float32) + 10 * rank
    total = mine.clone()
    dist.all_reduce(total, group=data)
    yield "all_reduce", total.tolist()
    told = mine.to(torch.bfloat16)
    dist.broadcast(told, src=1, group=data)
    yield "broadcast", told.tolist()
    received = torch.empty_like(mine)
    dist.all_to_all_single(received, mine, group=data)
    yield "all_to_all_single", received.tolist()
    gathered = mine.new_empty(2 * 4)
    dist.all_gather_single(gathered, mine, group=data)
    yield "all_gather_single", gathered.tolist()
    held = torch.empty_like(mine)
    sends = [
        dist.P2POp(dist.isend, mine, 1 - rank, group=data),
        dist.P2POp(dist.irecv, held, 1 - rank, group=data),
    ]
    for work in dist.batch_isend_irecv(sends):
        work.wait()
    yield "batch_isend_irecv", held.tolist()
    try:
        dist.all_reduce(mine[::2], group=data)
    except RuntimeError as error:
        yield "strided", str(error)


if __name__ == "__main__":
    rank = int(sys.argv[1])
    spec = GroupSpec(
        group_id="g",
        rank=rank,
        hosts=sys.argv[2].split(","),
        strategy="expert",
        timeout_s=60.0,
        device_id=f"npu:{rank}",
    )
    group = connect(spec, lambda cause: print(cause.message, file=sys.stderr))
    found = dict(results(group))
    dist.barrier(group=group.control)
    print(json.dumps(found), flush=True)
    os._exit(0)
