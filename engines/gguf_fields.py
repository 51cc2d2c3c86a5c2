"""The key-value part of a GGUF file, typed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from gguf import GGUFReader

from engines.model_errors import StoreError, refusal


@dataclass(frozen=True, slots=True)
class Fields:
    """Metadata by key. A missing key without a default raises `StoreError`."""

    values: Mapping[str, object]

    @classmethod
    def of(cls, reader: GGUFReader) -> Fields:
        """All fields of an open file."""
        fields = cast(Mapping[str, Any], reader.fields)
        return cls({key: field.contents() for key, field in fields.items()})

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        return str(self._get(key, default))

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number. Raises `StoreError` for one that differs from layer to layer (a list)."""
        value = self._get(key, default)
        if isinstance(value, list):
            message = f"In this GGUF file '{key}' differs from layer to layer, which is not supported."
            raise StoreError(refusal("gguf_unsupported", message))
        return int(cast(int, value))

    def number(self, key: str, default: float | None = None) -> float:
        """A float32 as the shortest decimal that means it: 1e-05, not 9.999999747378752e-06."""
        return float(str(np.float32(cast(float, self._get(key, default)))))

    def flag(self, key: str, default: bool) -> bool:
        """A boolean."""
        return bool(self._get(key, default))

    def texts(self, key: str) -> list[str]:
        """A list of strings."""
        return cast("list[str]", self._get(key, None))

    def integers(self, key: str) -> list[int]:
        """A list of whole numbers."""
        return cast("list[int]", self._get(key, None))

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def _get(self, key: str, default: object) -> object:
        value = self.values.get(key, default)
        if value is None:
            raise StoreError(refusal("model_files_broken", f"This GGUF file lacks the field '{key}'."))
        return value
