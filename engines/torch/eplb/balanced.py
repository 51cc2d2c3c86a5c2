"""The generator of rank 0 and the followers of a group whose experts can move."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engines.batching import Batch, Sampler
from engines.contract import LoadSpec, LoadWindow, MoveFailed, Staged
from engines.experts.maps import digest
from engines.generator import BatchedGenerator, Drawing
from engines.link import Apply, Drop, Link, Stage, Word
from engines.lockstep import BatchFollower, Broken
from engines.prompts import HubTokenizer
from engines.torch.eplb.movement import Movement
from engines.torch.eplb.windows import LoadWindows
from engines.torch.experts.layer import ExpertLayer
from engines.torch.experts.parallel import ExpertParallel
from engines.torch.group import TorchGroup
from events.experts import EplbSettings, LayerMoves


class Balance:
    """A rank's part in balancing the experts of its group: moving them and counting their load."""

    def __init__(self, group: TorchGroup, parallel: ExpertParallel, settings: EplbSettings) -> None:
        """Takes memory for what is staged. Raises `LoadError`, `GroupLost`."""
        assert parallel.recorder is not None
        rows = [_Rows(parallel, layer) for layer in parallel.layers]
        self.movement = Movement(
            group, rows, stage_s=settings.stage_timeout_s, apply_s=settings.apply_timeout_s
        )
        self.windows = LoadWindows(group, parallel.recorder)

    def obey(self, word: Stage | Apply | Drop) -> None:
        """Do what rank 0 has said to another rank. Raises `GroupLost`, and what `Movement` raises."""
        match word:
            case Stage():
                with contextlib.suppress(MoveFailed):  # rank 0 has the same, and tells
                    self.movement.stage(word.ticket, word.moves)
            case Apply():
                self.movement.apply(word.ticket, word.layer, word.map)
                self.windows.restart(word.epoch)
            case Drop():
                self.movement.drop(word.ticket)


class BalancedGenerator(BatchedGenerator):
    """Implements `engines.contract.Balanced`: what it does to experts, it has the other ranks do too."""

    def __init__(
        self,
        batch: Batch,
        tokenizer: HubTokenizer,
        spec: LoadSpec,
        drawing: Drawing,
        *,
        balance: Balance,
        links: Sequence[Link],
    ) -> None:
        super().__init__(batch, tokenizer, spec, drawing)
        self._balance = balance
        self._links = links
        self._ticket = 0

    def stage(self, moves: LayerMoves) -> Staged:
        """Stage a layer on all ranks. Raises `MoveFailed`, `GroupLost`."""
        self._ticket += 1
        self._tell(Stage(self._ticket, moves))
        return self._balance.movement.stage(self._ticket, moves)

    def apply(self, layer: int, epoch: int, map: list[int]) -> list[str]:
        """Apply a layer on all ranks. Raises `GroupLost`; `RuntimeError` where it is not what is staged."""
        self._ticket += 1
        self._tell(Apply(self._ticket, layer, epoch, map))
        digests = self._balance.movement.apply(self._ticket, layer, map)
        self._balance.windows.restart(epoch)
        return digests

    def drop(self) -> None:
        """Forget what is staged, on all ranks. Raises `GroupLost`."""
        self._ticket += 1
        self._tell(Drop(self._ticket))
        self._balance.movement.drop(self._ticket)

    def take_window(self) -> LoadWindow | None:
        """The next load window that the last step closed."""
        return self._balance.windows.take()

    def _tell(self, word: Word) -> None:
        for link in self._links:
            link.send(word)


class BalancedFollower(BatchFollower):
    """A rank other than 0, which moves experts when rank 0 does."""

    def __init__(
        self, batch: Batch, link: Link, sampler: Sampler, broken: Broken, *, balance: Balance
    ) -> None:
        super().__init__(batch, link, sampler, broken)
        self._balance = balance

    def obey(self, word: Word) -> None:
        """Do what rank 0 does. Raises `GroupLost`."""
        if isinstance(word, Stage | Apply | Drop):
            self._balance.obey(word)
        else:
            super().obey(word)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Implements `ExpertRows` for one MoE layer of the model."""

    parallel: ExpertParallel
    layer: ExpertLayer

    @property
    def tensors(self) -> list[torch.Tensor]:
        return list(self.layer.weights.tensors.values())

    @property
    def map(self) -> list[int]:
        return self.layer.map

    def remap(self, map: list[int]) -> None:
        self.parallel.set_map(self.layer, map)

    def digest(self) -> str:
        return digest(self.map, self.parallel.adapters[self.layer.number].live())
