"""Loads a model into an MLX runner: check, read layer by layer, warm up."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn

from engines import refusals, weights
from engines.contract import LoadSpec
from engines.generator import BatchedGenerator, warmed
from engines.link import Holds
from engines.lockstep import BatchFollower, LeadingBatch
from engines.mlx import blas, checks, library, pipeline, tensor
from engines.mlx.group import MlxGroup, ring_broken
from engines.mlx.sampling import MlxDrawing, nothing
from engines.prompts import HubTokenizer

_DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}


class MlxBuilder:
    """Implements `engines.contract.Builder`, for one rank alone or one of a group."""

    def __init__(self, spec: LoadSpec, group: MlxGroup | None = None) -> None:
        self._spec = spec
        self._group = group
        self._path = Path(spec.path)
        self._model: nn.Module | None = None
        self._tokenizer: HubTokenizer | None = None

    def load(self, progress: Callable[[int, int], None]) -> list[str]:
        """Read the weights, calling ``progress(layers, total)``. Returns notes. Raises `LoadError`."""
        return refusals.naming(self._path, lambda: self._load(progress))

    def warm_up(self) -> BatchedGenerator | BatchFollower:
        """Compute two short prompts side by side, so that every kernel is compiled.

        Returns the generator, on a rank other than 0 a follower, when rank 0 has computed them.
        """
        if self._model is None or self._tokenizer is None:
            raise RuntimeError("load comes before warm_up")
        eos = sorted(self._tokenizer.eos_token_ids)
        if self._group is None:
            batch = library.batch_generator(self._model, eos, self._spec)
            return warmed(BatchedGenerator(batch, self._tokenizer, self._spec, MlxDrawing()))
        endless = library.batch_generator(self._model, (), self._spec)
        if self._group.rank:
            follower = BatchFollower(endless, self._group.links[0], nothing, ring_broken)
            follower.warm_up()
            return follower
        _check_shards(self._group, self._spec)
        leading = LeadingBatch(endless, self._group.links, eos, ring_broken)
        generator = warmed(BatchedGenerator(leading, self._tokenizer, self._spec, MlxDrawing()))
        leading.warmed()
        return generator

    def _load(self, progress: Callable[[int, int], None]) -> list[str]:
        weights.inspect(self._path)
        config = library.load_config(self._path)
        model, notes = self._open(config)
        library.cast_weights(model, _DTYPES[self._spec.dtype])
        self._model = self._shard(model)
        self._read(self._model, progress)
        self._tokenizer = library.load_tokenizer(self._path, config.get("eos_token_id"))
        if self._group is None:
            return notes + self._machine_notes()
        if self._group.rank:
            self._group.links[0].send(Holds(self._spec.start_layer, self._spec.end_layer))
        return notes + self._group.notes + self._machine_notes()

    def _open(self, config: library.Config) -> tuple[nn.Module, list[str]]:
        """The model with its weights mapped but not read."""
        _, args_class = library.model_classes(config)
        overrides, notes = checks.corrections(config, args_class, weights.tensor_names(self._path))
        try:
            model = library.load_model(self._path, overrides)
        except ValueError as error:
            raise refusals.refused(
                "weights_mismatch", f"The weights in {self._path} do not match its config.json: {error}."
            ) from error
        checks.verify({**config, **overrides}, cast("Any", model).args)
        return model, notes

    def _shard(self, model: nn.Module) -> nn.Module:
        """What of the model this rank holds: all of it where it is alone."""
        if self._group is not None and self._group.spec.strategy == "pipeline":
            return pipeline.shard(model, self._group, self._spec)
        total = len(library.layers(model))
        if (self._spec.start_layer, self._spec.end_layer) != (0, total):
            raise refusals.refused(
                "wrong_layers",
                f"The placement wants layers {self._spec.start_layer} to {self._spec.end_layer}, the model "
                f"has {total}; outside a pipeline a runner holds a part of all of them.",
            )
        return model if self._group is None else tensor.shard(model, self._group, self._spec)

    def _read(self, model: nn.Module, progress: Callable[[int, int], None]) -> None:
        """Bring the weights into memory, a layer at a time."""
        layers = library.layers(model)
        progress(0, len(layers))
        for n, layer in enumerate(layers, start=1):
            library.read_weights(layer)
            progress(n, len(layers))
        library.read_weights(model)

    def _machine_notes(self) -> list[str]:
        on_cpu = mx.default_device() == mx.Device(mx.cpu)
        return [blas.HOW_TO_GET] if on_cpu and blas.in_use() == blas.REFERENCE else []


def _check_shards(group: MlxGroup, spec: LoadSpec) -> None:
    """Wait until all other ranks have loaded. Raises `LoadError` where they do not make up the model."""
    shards = [(spec.start_layer, spec.end_layer)]
    for link in group.links:
        word = link.take()
        assert isinstance(word, Holds)
        shards.append((word.start, word.end))
    whole = all(shard == (0, spec.card.n_layers) for shard in shards)
    if not (whole if group.spec.strategy == "tensor" else all(a[1] == b[0] for a, b in pairwise(shards))):
        raise refusals.refused("wrong_layers", f"The layers of the ranks don't make up the model: {shards}.")
