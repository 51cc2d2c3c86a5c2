"""Weights from safetensors into a transformers model, read tensor by tensor.

transformers makes the model without memory, renames and fuses what the files hold (`from_pretrained`), and
gets the tensors from us: nothing is in memory twice, and progress is counted in layers.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from engines import weights
from engines.refusals import refused

Progress = Callable[[int, int], None]
"""Called with the layers that are read and all there are."""
Prepare = Callable[[PreTrainedModel], Collection[str]]
"""Changes a model that has no memory yet; returns how the names of tensors begin that it reads itself."""

_LAYER = re.compile(r"\blayers\.(\d+)\.")


class Slice(Protocol):
    """A tensor in a file: indexing reads it, or a part of it."""

    def __getitem__(self, index: Any) -> torch.Tensor: ...

    def get_shape(self) -> list[int]:
        """Its shape."""
        ...

    def get_dtype(self) -> str:
        """Its dtype as safetensors names it, such as BF16."""
        ...


class _File(Protocol):
    def keys(self) -> list[str]: ...

    def get_slice(self, name: str) -> Slice: ...


class Checkpoint:
    """The weight files of a directory, mapped and not read. To be used in a ``with`` statement.

    Raises `StoreError` where files are missing or broken.
    """

    def __init__(self, path: Path) -> None:
        weights.inspect(path)
        self._files = ExitStack()
        self._slices: dict[str, Slice] = {}
        for name in weights.weight_files(path):
            file = cast("_File", self._files.enter_context(safe_open(path / name, framework="pt")))
            self._slices |= {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    @property
    def names(self) -> frozenset[str]:
        """Names of all tensors."""
        return frozenset(self._slices)

    def slice(self, name: str) -> Slice:
        """A tensor by its name. Raises `KeyError`."""
        return self._slices[name]


def load(
    config: PreTrainedConfig,
    checkpoint: Checkpoint,
    *,
    dtype: torch.dtype,
    device: torch.device,
    progress: Progress,
    prepare: Prepare | None = None,
) -> PreTrainedModel:
    """The model for inference. Raises `LoadError` for tensors that are missing, left over or misshapen."""
    taken: list[str] = []
    own: set[str] = set()

    def change(model: PreTrainedModel) -> None:
        if prepare is not None:
            before = set(model.state_dict())
            taken.extend(prepare(model))
            own.update(set(model.state_dict()) - before)

    model, info = _class_of(config, change).from_pretrained(
        None,
        config=config,
        state_dict=_Watched(checkpoint, taken, config.num_hidden_layers, progress),
        dtype=dtype,
        device_map=None if device.type == "cpu" else {"": device},
        attn_implementation="sdpa",
        ignore_mismatched_sizes=True,
        output_loading_info=True,
    )
    _check(info, own)
    return model.eval().requires_grad_(False)


def _check(info: Mapping[str, Any], own: Collection[str]) -> None:
    """Raises `LoadError` where files and model don't match. ``own`` are parameters that others fill."""
    missing = sorted(set(info["missing_keys"]) - set(own))
    shapes = sorted(str(key[0]) for key in info["mismatched_keys"])
    for what, names in (
        ("lack", missing),
        ("have in another shape", shapes),
        ("hold beyond it", sorted(info["unexpected_keys"])),
    ):
        if names:
            raise refused(
                "weights_mismatch",
                f"The weights do not match config.json: they {what} {', '.join(names[:3])}"
                f"{f' and {len(names) - 3} more' if len(names) > 3 else ''}. Fetch the model again.",
            )


def _class_of(config: PreTrainedConfig, change: Callable[[PreTrainedModel], None]) -> Any:
    """The model class for a config, whose instances are changed when they are made.

    Raises `ValueError` for a model type that transformers lacks.
    """
    mapping: Any = AutoModelForCausalLM._model_mapping  # pyright: ignore[reportPrivateUsage]
    base: Any = mapping[type(config)]

    def __init__(self: PreTrainedModel, config: PreTrainedConfig) -> None:
        base.__init__(self, config)
        change(self)

    return type(base.__name__, (base,), {"__init__": __init__, "__module__": base.__module__})


class _Watched(Mapping[str, "_Reading"]):
    """The tensors of a checkpoint as a state dict, which counts the layers that have been read.

    What is ``taken`` is looked at when it is asked for: by then the model has been made. Where others read
    a part of the layers, none of them counts as read yet.
    """

    def __init__(
        self, checkpoint: Checkpoint, taken: Collection[str], n_layers: int, progress: Progress
    ) -> None:
        self._checkpoint = checkpoint
        self._taken = taken
        self._total = n_layers
        self._progress = progress
        self._left: Counter[str] = Counter()
        self._read = 0
        self._lock = threading.Lock()  # transformers reads on several threads

    def __getitem__(self, name: str) -> _Reading:
        return _Reading(self._checkpoint.slice(name), lambda: self._note(name))

    def __iter__(self) -> Iterator[str]:
        names = [name for name in self._checkpoint.names if not name.startswith(tuple(self._taken))]
        self._left = Counter(layer for name in names if (layer := _layer(name)))
        self._progress(0, self._total)
        return iter(names)

    def __len__(self) -> int:
        return len(self._checkpoint.names)

    def _note(self, name: str) -> None:
        with self._lock:
            if layer := _layer(name):
                self._left[layer] -= 1
                if self._left[layer] == 0 and self._read < self._total:
                    self._read += 1
                    self._progress(0 if self._taken else self._read, self._total)


class _Reading:
    """A tensor that says when it has been read."""

    def __init__(self, tensor: Slice, read: Callable[[], None]) -> None:
        self._tensor = tensor
        self._read = read

    def __getitem__(self, index: Any) -> torch.Tensor:
        found = self._tensor[index]
        self._read()
        return found


def _layer(name: str) -> str:
    match = _LAYER.search(name)
    return match[1] if match else ""
