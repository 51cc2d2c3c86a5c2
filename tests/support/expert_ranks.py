"""Ranks that share the experts of a model, as child processes that do one piece of work after another."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from support.torch_ranks import PATIENCE_S, TorchRanks
from transformers import AutoConfig, PreTrainedModel

from engines.contract import ExpertShard
from engines.torch import loading
from engines.torch.experts.parallel import ExpertParallel
from engines.torch.group import TorchGroup

CPU = torch.device("cpu")


@dataclass
class Rank:
    """A rank of ``world``; ``group`` is None in a world of one."""

    rank: int
    world: int
    group: dist.ProcessGroup | None


class ExpertRanks:
    """Three processes, of which `run` uses the first one, two or three; new ones where work has failed."""

    def __init__(self) -> None:
        self._ranks: TorchRanks | None = None

    def __enter__(self) -> ExpertRanks:
        return self

    def __exit__(self, *error: object) -> None:
        if self._ranks is not None:
            self._ranks.__exit__(*error)
            self._ranks = None

    def run(self, world: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
        """What ``work(rank, *arguments)`` returns on each rank. Fails with the first rank that does."""
        ranks = self._started()
        for pipe in ranks.pipes[:world]:
            pipe.send((world, work, arguments))
        answers: dict[int, Any] = {}
        while len(answers) < world:
            waiting = {ranks.pipes[rank]: rank for rank in range(world) if rank not in answers}
            ready = wait(list(waiting), PATIENCE_S)
            heard = {waiting[pipe]: _heard(pipe) for pipe in ready if isinstance(pipe, Connection)}
            failed = [answer for answer in heard.values() if isinstance(answer, str)]
            if failed or not heard:
                self.__exit__()
            assert heard, f"ranks other than {sorted(answers)} said nothing for {PATIENCE_S} s"
            assert not failed, failed
            answers |= heard
        return [answers[rank] for rank in range(world)]

    def _started(self) -> TorchRanks:
        if self._ranks is None:
            self._ranks = TorchRanks(3, _work)
            assert self._ranks.answers() == ["ready"] * 3
        return self._ranks


def _heard(pipe: Connection) -> Any:
    try:
        return pipe.recv()
    except EOFError:
        return "A rank has ended."


def _work(group: TorchGroup, pipe: Connection) -> Any:
    groups = {1: None, 2: dist.new_group([0, 1], backend="gloo"), 3: group.data}
    pipe.send("ready")
    while True:
        world, work, arguments = pipe.recv()
        try:
            answer = work(Rank(group.rank, world, groups[world]), *arguments)
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        pipe.send(answer)


def load(
    rank: Rank, path: Path, shard: ExpertShard, dtype: torch.dtype = torch.float32
) -> tuple[PreTrainedModel, ExpertParallel]:
    """A rank's part of a model, read as the builder reads it."""
    parallel = ExpertParallel(
        shard, rank=rank.rank, world=rank.world, group=rank.group, dtype=dtype, device=CPU
    )
    with loading.Checkpoint(path) as checkpoint:
        model = loading.load(
            AutoConfig.from_pretrained(path),
            checkpoint,
            dtype=dtype,
            device=CPU,
            progress=lambda done, total: None,
            prepare=parallel.prepare,
        )
        parallel.read(checkpoint, lambda done, total: None)
    return model, parallel


def replace(path: Path, parallel: ExpertParallel, number: int, new: list[int]) -> None:
    """Give a layer another map, its experts read from the files again."""
    layer = parallel.layers[number]
    with loading.Checkpoint(path) as checkpoint:
        for slot in range(layer.weights.slots):
            parallel.reload(layer, slot, new[layer.first + slot], checkpoint)
    parallel.set_map(layer, new)


def forward(
    model: PreTrainedModel, parallel: ExpertParallel, tokens: torch.Tensor, real: torch.Tensor | None = None
) -> torch.Tensor:
    """Logits of sequences 0, 1, ... from their first token on."""
    positions = torch.arange(tokens.shape[1]).expand(tokens.shape)
    if parallel.recorder is not None:
        parallel.recorder.begin(prefill=True, tokens=tokens.numel() if real is None else int(real.sum()))
    parallel.facts.begin(positions, range(len(tokens)), real)
    with torch.inference_mode():
        return model(tokens).logits


def after_maps(
    rank: Rank, path: Path, shard: ExpertShard, tokens: NDArray[np.int64], histories: list[list[list[int]]]
) -> tuple[list[NDArray[np.float32]], float]:
    """Logits at first, and after all layers have got each of ``histories``' maps; and the seconds it took."""
    began = time.perf_counter()
    model, parallel = load(rank, path, shard)
    asked = torch.from_numpy(tokens)
    found = [forward(model, parallel, asked).numpy()]
    for layer_maps in histories:
        for number, new in enumerate(layer_maps):
            replace(path, parallel, number, new)
        found.append(forward(model, parallel, asked).numpy())
    return found, time.perf_counter() - began
