"""The engines that this version knows, by name."""

from __future__ import annotations

from engines.contract import Engine
from engines.mlx.engine import MlxEngine
from engines.torch.engine import TorchEngine

ENGINES: dict[str, Engine] = {engine.name: engine for engine in (MlxEngine(), TorchEngine())}


def engine(name: str) -> Engine:
    """The engine called ``name``. Raises `LookupError` with the known names."""
    try:
        return ENGINES[name]
    except KeyError:
        raise LookupError(f"there is no engine {name!r}; known: {', '.join(ENGINES)}") from None
