"""A model's experts spread over ranks: each reads those of its slots, which compute in place of all."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from transformers import PreTrainedModel

from engines.contract import ExpertShard
from engines.experts import maps
from engines.refusals import refused
from engines.torch.experts import formats, layouts
from engines.torch.experts.dispatch import AllToAll, Dispatch, Shared
from engines.torch.experts.facts import BatchFacts
from engines.torch.experts.layer import IMPLEMENTATION, ExpertLayer, install
from engines.torch.experts.layouts import Layout, MoeBlock
from engines.torch.experts.weights import Scratch
from events.experts import EplbSettings

if TYPE_CHECKING:
    from engines.torch.eplb.adapter import RouterAdapter
    from engines.torch.eplb.recorder import LoadRecorder


class Slice(Protocol):
    """A tensor in a file."""

    def __getitem__(self, index: object, /) -> Tensor: ...


class Checkpoint(Protocol):
    """Tensors by their names."""

    def slice(self, name: str) -> Slice:
        """One of them. Raises `KeyError`."""
        ...


class ExpertParallel:
    """One rank's part of all MoE layers. ``group`` may be None in a world of one.

    `prepare` while the model has no memory, `read` when it has; then `facts.begin` before every forward pass.
    Without EPLB the expert in slot p is p, routers are left alone and nothing is counted.
    """

    def __init__(
        self,
        shard: ExpertShard,
        *,
        rank: int,
        world: int,
        group: ProcessGroup | None,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        if shard.slots % world:
            raise refused(
                "experts_not_divisible",
                f"{shard.slots} physical experts can't be divided evenly among {world} ranks. Choose another "
                "number of redundant experts or ranks.",
            )
        self._shard = shard
        self._rank, self._world = rank, world
        self._dtype, self._device = dtype, device
        self._scratch = Scratch(device)
        self._dispatch: Dispatch = (
            AllToAll(rank, world, group, shard.slots // world)
            if shard.dispatch == "all_to_all"
            else Shared(world, group)
        )
        self._layout: Layout | None = None
        self.layers: list[ExpertLayer] = []
        """MoE layers, in order."""
        self.adapters: list[RouterAdapter] = []
        """With EPLB one for each of the layers."""
        self.recorder: LoadRecorder | None = None
        """With EPLB."""
        self.facts = BatchFacts(self._dispatch)

    def prepare(self, model: PreTrainedModel) -> frozenset[str]:
        """Take the experts out of a model on the meta device and put ours in. What their tensors' names begin
        with.

        Raises `LoadError` where this model's experts can't be spread like that.
        """
        self._layout = layouts.layout(str(model.config.model_type))
        found = layouts.blocks(model)
        placed = self._maps(found)
        for number, block in enumerate(found):
            layer = self._layer(number, block, placed[number])
            install(block.module, layer)
            self.layers.append(layer)
            if self._dispatch.sliced:
                self._slice(block)
        if self._shard.eplb is not None:
            self._balance(self._shard.eplb, found)
        model.set_experts_implementation(IMPLEMENTATION)
        return frozenset(self._layout.prefix(block.layer) for block in found)

    def read(self, checkpoint: Checkpoint, progress: Callable[[int, int], None]) -> None:
        """Fill the slots; ``progress`` gets the MoE layers that are read and all. Raises `LoadError`."""
        for layer in self.layers:
            for slot in range(layer.weights.slots):
                self.reload(layer, slot, layer.map[layer.first + slot], checkpoint)
            progress(layer.number + 1, len(self.layers))

    def reload(self, layer: ExpertLayer, slot: int, expert: int, checkpoint: Checkpoint) -> None:
        """Fill one of this rank's slots, from 0, with a logical expert. Raises `LoadError`."""
        assert self._layout is not None
        names = self._layout.names(layer.index, expert)
        gate, up, down = (
            _read(checkpoint, name, shape) for name, shape in zip(names, layer.shapes, strict=True)
        )
        layer.weights.fill(slot, gate, up, down)

    def set_map(self, layer: ExpertLayer, layer_map: list[int]) -> None:
        """From the next forward pass on, find experts by this map. With EPLB; the weights must be there."""
        layer.map = list(layer_map)
        self.adapters[layer.number].refresh(layer_map)

    def _maps(self, found: list[MoeBlock]) -> list[list[int]]:
        """One for each MoE layer: what the shard says, or what `maps.initial` does. Raises `LoadError`."""
        said, slots = self._shard.maps, self._shard.slots
        if said and len(said) != len(found):
            raise refused(
                "experts_misplaced",
                f"The placement has maps of {len(said)} MoE layers; the model has {len(found)}.",
            )
        try:
            placed = said or [maps.initial(block.n_experts, slots, self._world) for block in found]
            for layer_map, block in zip(placed, found, strict=True):
                if len(layer_map) != slots:
                    raise ValueError(f"A map of {len(layer_map)} slots is not one of {slots}.")
                maps.check(layer_map, block.n_experts, self._world)
        except ValueError as error:
            raise refused("experts_misplaced", f"The experts can't be placed: {error}") from error
        if self._shard.eplb is None and any(layer_map != list(range(slots)) for layer_map in placed):
            raise refused("experts_misplaced", "Experts can be copied or moved only with EPLB, which is off.")
        return [list(layer_map) for layer_map in placed]

    def _layer(self, number: int, block: MoeBlock, layer_map: list[int]) -> ExpertLayer:
        weights = formats.create(
            self._shard.format,
            self._shard.slots // self._world,
            block.hidden,
            block.inner,
            self._dtype,
            self._scratch,
        )
        return ExpertLayer(
            number, block, layer_map, weights, rank=self._rank, dispatch=self._dispatch, facts=self.facts
        )

    def _slice(self, block: MoeBlock) -> None:
        """Have the router see this rank's tokens alone."""

        def local(_: object, args: tuple[Tensor, ...]) -> tuple[Tensor]:
            return (self._dispatch.local(args[0].reshape(-1, block.hidden)),)

        block.router.register_forward_pre_hook(local)

    def _balance(self, eplb: EplbSettings, found: list[MoeBlock]) -> None:
        """Have routers answer with slots, and count."""
        from engines.torch.eplb.adapter import RouterAdapter, token_rows
        from engines.torch.eplb.recorder import LoadRecorder

        self.facts.token_rows = token_rows
        for layer, block in zip(self.layers, found, strict=True):
            adapter = RouterAdapter(self.facts, layer.map, layer.experts, self._device)
            block.router.register_forward_hook(adapter)
            self.adapters.append(adapter)
        self.recorder = LoadRecorder(
            self.facts, eplb, len(self.layers), self._shard.slots // self._world, self._device
        )


def _read(checkpoint: Checkpoint, name: str, shape: tuple[int, int]) -> Tensor:
    try:
        found = checkpoint.slice(name)[...]
    except KeyError:
        raise refused(
            "weights_mismatch",
            f"The weights do not match config.json: they lack {name}. Fetch the model again.",
        ) from None
    if tuple(found.shape) != shape:
        raise refused(
            "weights_mismatch",
            f"The weights do not match config.json: they have {name} in another shape, {tuple(found.shape)} "
            f"and not {shape}. Fetch the model again.",
        )
    return found
