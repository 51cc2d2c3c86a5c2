"""What every engine checks before a model is served, and how it says that a model can't be."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from engines.contract import GroupLost, LoadError
from engines.model_errors import StoreError
from events.values import Cause

T = TypeVar("T")

OUT_OF_MEMORY = re.compile(
    r"kIOGPUCommandBufferCallbackErrorOutOfMemory|std::bad_alloc|MemoryError|Unable to allocate"
    r"|DefaultCPUAllocator: can't allocate memory|out of memory",
    re.IGNORECASE,
)
"""What the libraries say when memory has run out; few of them raise MemoryError."""
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""The names under which a config.json may say how many experts a layer has."""
COMPARED = (
    "rope_theta",
    "partial_rotary_factor",
    "num_key_value_heads",
    "num_attention_heads",
    "hidden_size",
    "head_dim",
    "vocab_size",
    "tie_word_embeddings",
    "rms_norm_eps",
    "num_experts_per_tok",
    *EXPERTS,
)
"""What a library must have taken as config.json says it, or the model writes fluent nonsense."""


def refused(code: str, message: str) -> LoadError:
    """The error of a model that must not be served."""
    return LoadError(Cause(code=code, message=message))


def conflict(key: str, value: object, other: str, other_value: object) -> LoadError:
    """The error of a config.json that says two things."""
    return refused(
        "config_conflict",
        f"config.json contradicts itself: {key} = {value}, but {other} = {other_value}. "
        "Correct the file, or fetch the model again.",
    )


def experts_said(config: Mapping[str, Any]) -> dict[str, Any]:
    """The number of experts under each name that config.json uses. Raises `LoadError` where they differ."""
    said = {key: config[key] for key in EXPERTS if config.get(key) is not None}
    for key, value in said.items():
        first = next(iter(said))
        if value != said[first]:
            raise conflict(first, said[first], key, value)
    return said


def naming(path: Path, load: Callable[[], T]) -> T:
    """``load()``, whose errors say which model can't be loaded: all become `LoadError` but `GroupLost`."""
    try:
        return load()
    except (LoadError, GroupLost):
        raise
    except StoreError as error:
        raise LoadError(error.cause) from error
    except Exception as error:  # the libraries raise whatever a file makes them raise
        if isinstance(error, MemoryError) or OUT_OF_MEMORY.search(str(error)):
            raise refused("out_of_memory", f"The weights do not fit into memory: {error}.") from error
        raise refused("load_error", f"{path} can't be loaded: {type(error).__name__}: {error}.") from error
