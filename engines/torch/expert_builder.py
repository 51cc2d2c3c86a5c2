"""Loads one rank of a group that shares a model's experts, and has it serve in lockstep with the others."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

import msgspec
import torch
from transformers import PreTrainedModel

from engines.contract import ExpertShard, Follower, Generator, LoadError, LoadSpec
from engines.experts.refusals import load_refusal
from engines.generator import BatchedGenerator, warmed
from engines.link import Holds
from engines.lockstep import BatchFollower, LeadingBatch
from engines.refusals import refused
from engines.torch import loading, tokens
from engines.torch.batch import TorchBatch
from engines.torch.builder import TorchBuilder
from engines.torch.devices import DTYPES
from engines.torch.experts.parallel import ExpertParallel
from engines.torch.group import TorchGroup, broken
from engines.torch.model import TorchModel
from engines.torch.passes import Compute, Pass
from engines.torch.sampling import TorchDrawing, nothing
from engines.torch.tokenizer import TorchTokenizer

if TYPE_CHECKING:
    from engines.torch.eplb.balanced import Balance


class ExpertBuilder(TorchBuilder):
    """Implements `engines.contract.Builder` for one of several ranks. Each holds S slots of each MoE layer.

    Everything but the experts is on every rank, which computes it for all tokens.
    """

    def __init__(self, spec: LoadSpec, group: TorchGroup) -> None:
        """Raises `LoadError` for what a group of these ranks can't do."""
        super().__init__(spec)
        self._group = group
        self._shard = _shard(spec, group)
        self._parallel = ExpertParallel(
            self._shard,
            rank=group.rank,
            world=group.world,
            group=group.data,
            dtype=DTYPES[spec.dtype],
            device=self.device,
        )

    def prepare(self, model: PreTrainedModel) -> Collection[str]:
        """Take the experts out of the model."""
        return self._parallel.prepare(model)

    def fill(
        self, model: PreTrainedModel, checkpoint: loading.Checkpoint, progress: Callable[[int, int], None]
    ) -> list[str]:
        """Read this rank's experts, and tell rank 0 when that is done."""
        del model
        self._parallel.read(checkpoint, progress)
        if self._group.rank:
            self._group.links[0].send(self._holds())
        return list(self._group.notes)

    def serve(self, model: TorchModel, tokenizer: TorchTokenizer) -> Generator | Follower:
        """The generator on rank 0, a follower on the others, when rank 0 has warmed up."""
        balance = self._balance()
        compute = self._located(model)
        if balance is not None:
            compute = balance.windows.counted(compute)
        if self._group.rank:
            served = self._follow(model, tokens.following(compute, self._group.links[0]), balance)
        else:
            served = self._lead(model, tokens.leading(compute, self._group.links), tokenizer, balance)
        if balance is not None:
            balance.windows.restart(self._shard.epoch)  # the warm-up is nobody's load
        return served

    def _balance(self) -> Balance | None:
        """What moves experts; nothing of it is imported where nothing moves."""
        if self._shard.eplb is None:
            return None
        from engines.torch.eplb.balanced import Balance

        return Balance(self._group, self._parallel, self._shard.eplb)

    def _located(self, model: TorchModel) -> Compute:
        """The model, whose experts are told whose tokens they get."""

        def computed(passed: Pass) -> torch.Tensor:
            self._parallel.facts.begin(passed.positions, passed.uids)
            return model(passed)

        return computed

    def _batch(self, model: TorchModel, compute: Compute) -> TorchBatch:
        """A batch that no token ends: the other ranks could not know which one it was."""
        return TorchBatch(compute, model.cache, self.device, (), self.spec)

    def _follow(self, model: TorchModel, compute: Compute, balance: Balance | None) -> Follower:
        batch, link = self._batch(model, compute), self._group.links[0]
        if balance is None:
            follower = BatchFollower(batch, link, nothing, broken)
        else:
            from engines.torch.eplb.balanced import BalancedFollower

            follower = BalancedFollower(batch, link, nothing, broken, balance=balance)
        follower.warm_up()
        return follower

    def _lead(
        self, model: TorchModel, compute: Compute, tokenizer: TorchTokenizer, balance: Balance | None
    ) -> Generator:
        links, drawing = self._group.links, TorchDrawing(self.device)
        self._check_shards()
        leading = LeadingBatch(self._batch(model, compute), links, sorted(tokenizer.eos_token_ids), broken)
        if balance is None:
            generator = BatchedGenerator(leading, tokenizer, self.spec, drawing)
        else:
            from engines.torch.eplb.balanced import BalancedGenerator

            generator = BalancedGenerator(
                leading, tokenizer, self.spec, drawing, balance=balance, links=links
            )
        warmed(generator)
        leading.warmed()
        return generator

    def _holds(self) -> Holds:
        shard = hashlib.blake2b(msgspec.msgpack.encode(self._shard), digest_size=8).hexdigest()
        return Holds(self.spec.start_layer, self.spec.end_layer, shard)

    def _check_shards(self) -> None:
        """Wait until all other ranks have loaded. Raises `LoadError` where experts lie otherwise there."""
        mine = self._holds()
        for link in self._group.links:
            word = link.take()
            if word != mine:
                raise refused(
                    "wrong_experts",
                    f"Rank {link.peer} was told to spread the experts in another way than rank 0: {word}.",
                )


def _shard(spec: LoadSpec, group: TorchGroup) -> ExpertShard:
    if spec.experts is None:
        raise refused("wrong_experts", "A rank of a torch group must be told how the experts are spread.")
    cause = load_refusal(spec.card, spec.experts, group.world, group.kind.kind)
    if cause is not None:
        raise LoadError(cause)
    return spec.experts
