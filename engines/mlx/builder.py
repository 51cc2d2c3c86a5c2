"""Loads a model into an MLX runner: check, read layer by layer, warm up."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn

from engines import weights
from engines.contract import GroupLost, LoadError, LoadSpec
from engines.link import Holds
from engines.mlx import blas, checks, library, pipeline, tensor
from engines.mlx.generator import MlxGenerator
from engines.mlx.group import MlxGroup
from engines.mlx.lockstep import LeadingBatch, MlxFollower, endless_batch
from engines.model_errors import StoreError
from events.values import Sampling

_DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}
_WARM_UP = Sampling(max_tokens=3, temperature=0.7, top_p=0.9, seed=0)


class MlxBuilder:
    """Implements `engines.contract.Builder`, for one rank alone or one of a group."""

    def __init__(self, spec: LoadSpec, group: MlxGroup | None = None) -> None:
        self._spec = spec
        self._group = group
        self._path = Path(spec.path)
        self._model: nn.Module | None = None
        self._tokenizer: library.HubTokenizer | None = None

    def load(self, progress: Callable[[int, int], None]) -> list[str]:
        """Read the weights, calling ``progress(layers, total)``. Returns notes. Raises `LoadError`."""
        try:
            return self._load(progress)
        except (LoadError, GroupLost):
            raise
        except StoreError as error:
            raise LoadError(error.cause) from error
        except MemoryError as error:
            raise checks.refused("out_of_memory", f"The weights do not fit into memory: {error}.") from error
        except Exception as error:  # mlx-lm raises whatever a file makes it raise; say which model
            raise checks.refused(
                "load_error", f"{self._path} can't be loaded: {type(error).__name__}: {error}."
            ) from error

    def warm_up(self) -> MlxGenerator | MlxFollower:
        """Compute two short prompts side by side, so that every kernel is compiled.

        Returns the generator, on a rank other than 0 a follower, when rank 0 has computed them.
        """
        if self._model is None or self._tokenizer is None:
            raise RuntimeError("load comes before warm_up")
        eos = sorted(self._tokenizer.eos_token_ids)
        if self._group is None:
            batch = library.batch_generator(
                self._model, eos, batch=self._spec.batch, prefill_chunk=self._spec.prefill_chunk
            )
            return _warmed(MlxGenerator(batch, self._tokenizer, self._spec))
        if self._group.rank:
            follower = MlxFollower(self._model, self._spec, self._group.links[0])
            follower.warm_up()
            return follower
        _check_shards(self._group, self._spec)
        leading = LeadingBatch(endless_batch(self._model, self._spec), self._group.links, eos)
        generator = _warmed(MlxGenerator(leading, self._tokenizer, self._spec))
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
        overrides, notes = checks.corrections(config, args_class, _tensor_names(self._path))
        try:
            model = library.load_model(self._path, overrides)
        except ValueError as error:
            raise checks.refused(
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
            raise checks.refused(
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
        return [blas.HOW_TO_GET] if on_cpu and blas.in_use().get("blas") == "netlib reference" else []


def _warmed(generator: MlxGenerator) -> MlxGenerator:
    for n in range(2):
        generator.submit(f"warm-up-{n}", [0] * (4 + n), _WARM_UP)
    while generator.busy:
        for step in generator.step():
            if step.failure:
                raise LoadError(step.failure)
    return generator


def _check_shards(group: MlxGroup, spec: LoadSpec) -> None:
    """Wait until all other ranks have loaded. Raises `LoadError` where they do not make up the model."""
    shards = [(spec.start_layer, spec.end_layer)]
    for link in group.links:
        word = link.take()
        assert isinstance(word, Holds)
        shards.append((word.start, word.end))
    whole = all(shard == (0, spec.card.n_layers) for shard in shards)
    if not (whole if group.spec.strategy == "tensor" else all(a[1] == b[0] for a, b in pairwise(shards))):
        raise checks.refused("wrong_layers", f"The layers of the ranks don't make up the model: {shards}.")


def _tensor_names(path: Path) -> frozenset[str]:
    """Names of the tensors in the weight files, from their headers."""
    names: set[str] = set()
    for file in weights.weight_files(path):
        with (path / file).open("rb") as stream:
            (size,) = struct.unpack("<Q", stream.read(8))
            names |= json.loads(stream.read(size)).keys()
    return frozenset(names)
