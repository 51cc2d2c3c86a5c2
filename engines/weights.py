"""What the weight files of a directory hold, from their headers alone; missing and cut files are found."""

from __future__ import annotations

import json
import math
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from engines.model_errors import StoreError, refusal
from events.values import Dtype, Quantization

INDEX = "model.safetensors.index.json"

_DTYPES: dict[str, Dtype] = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}

_MAX_HEADER = 100_000_000
"""Bytes; the safetensors library's own limit."""


class _Tensor(msgspec.Struct, frozen=True):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


class _Index(msgspec.Struct, frozen=True):
    weight_map: dict[str, str]


@dataclass(frozen=True, slots=True)
class Weights:
    """Weight files, their tensors' bytes and parameters, and the commonest float type."""

    files: list[str]
    n_bytes: int
    n_params: int
    dtype: Dtype | None


def inspect(directory: Path, quantization: Quantization | None = None) -> Weights:
    """Read the headers of all weight files. Raises `StoreError` naming files that are missing or cut.

    With ``quantization`` parameters that are packed into words are counted one by one.
    """
    files = weight_files(directory)
    tensors: dict[str, _Tensor] = {}
    for file in files:
        tensors |= _header(directory / file)
    dtypes: Counter[str] = Counter()
    for tensor in tensors.values():
        dtypes[tensor.dtype] += tensor.data_offsets[1] - tensor.data_offsets[0]
    dtype: Dtype | None = next((_DTYPES[name] for name, _ in dtypes.most_common() if name in _DTYPES), None)
    return Weights(files, dtypes.total(), _count(tensors, quantization), dtype)


def tensor_names(directory: Path) -> frozenset[str]:
    """Names of all tensors in the weight files. Raises `StoreError` as `inspect` does."""
    return frozenset(name for file in weight_files(directory) for name in _header(directory / file))


def weight_files(directory: Path) -> list[str]:
    """Names of the weight files: those of the index, or ``model.safetensors``, or all safetensors there."""
    present = {path.name for path in directory.glob("*.safetensors")}
    wanted = indexed(directory / INDEX) if (directory / INDEX).is_file() else chosen(present)
    if missing := sorted(set(wanted) - present):
        message = f"{directory} lacks {', '.join(missing)} of its {len(wanted)} weight files; fetch it again."
        raise StoreError(refusal("model_files_missing", message))
    if not wanted:
        message = f"{directory} holds no .safetensors files; convert the weights or fetch the model again."
        raise StoreError(refusal("model_files_missing", message))
    return wanted


def chosen(names: set[str]) -> list[str]:
    """The weight files among ``names`` where there is no index: ``model.safetensors``, or else all."""
    return ["model.safetensors"] if "model.safetensors" in names else sorted(names)


def indexed(index: Path) -> list[str]:
    """Names of the weight files that an index lists. Raises `StoreError` where it is none."""
    try:
        weight_map = msgspec.json.decode(index.read_bytes(), type=_Index).weight_map
    except (msgspec.DecodeError, RecursionError) as error:
        raise StoreError(refusal("model_files_broken", f"{index} is no weight index: {error}.")) from error
    if strays := [name for name in weight_map.values() if Path(name).name != name]:
        message = f"{index} names a file outside its directory: {strays[0]}."
        raise StoreError(refusal("model_files_broken", message))
    return sorted(set(weight_map.values()))


def _header(path: Path) -> dict[str, _Tensor]:
    try:
        with path.open("rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            content = json.loads(file.read(min(size, _MAX_HEADER)))
        content = msgspec.convert(content, dict[str, object])
        content.pop("__metadata__", None)
        tensors = msgspec.convert(content, dict[str, _Tensor])
    except (struct.error, ValueError, RecursionError, msgspec.ValidationError) as error:
        message = f"{path} is not a whole safetensors file ({error}); fetch it again."
        raise StoreError(refusal("model_files_broken", message)) from error
    end = 8 + size + max((tensor.data_offsets[1] for tensor in tensors.values()), default=0)
    if (actual := path.stat().st_size) != end:
        message = f"{path} has {actual} bytes where its header wants {end}; fetch it again."
        raise StoreError(refusal("model_files_broken", message))
    return tensors


def _count(tensors: Mapping[str, _Tensor], quantization: Quantization | None) -> int:
    return sum(_params(name, tensor, tensors, quantization) for name, tensor in tensors.items())


def _params(
    name: str, tensor: _Tensor, tensors: Mapping[str, _Tensor], quantization: Quantization | None
) -> int:
    """Parameters in one tensor. MLX, AWQ and GPTQ pack them, with one of ``scales`` for each group."""
    stem, _, part = name.rpartition(".")
    scales = tensors.get(f"{stem}.scales")
    if scales is None or quantization is None:
        return math.prod(tensor.shape)
    return math.prod(scales.shape) * quantization.group_size if part in ("weight", "qweight") else 0
