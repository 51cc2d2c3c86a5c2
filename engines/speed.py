"""How fast an engine is on this machine: the same work for all of them, so that the numbers can be compared.

The work is the eight layers' share of a small transformer (SmolLM2's shapes): a prompt of 64 tokens, then 16
decode steps, each a full pass with attention. Its answer means nothing; its time is the engine's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM, LAYERS = 576, 1536, 9, 3, 64, 8
PROMPT, DECODED = 64, 16
_SECONDS = 0.3
"""Time to go on measuring, once the work has been done two times."""
_LAYER = {
    "q": (HEADS * HEAD_DIM, HIDDEN),
    "k": (KV_HEADS * HEAD_DIM, HIDDEN),
    "v": (KV_HEADS * HEAD_DIM, HIDDEN),
    "o": (HIDDEN, HEADS * HEAD_DIM),
    "gate": (FFN, HIDDEN),
    "up": (FFN, HIDDEN),
    "down": (HIDDEN, FFN),
}
LAYER_PARAMS = sum(rows * width for rows, width in _LAYER.values())
"""Weights of a layer of the work."""


class Kit(Protocol):
    """An engine's arithmetic, in the dtype that it is best in. Arrays are of its own kind."""

    def full(self, *shape: int) -> Any:
        """Some small number everywhere."""
        ...

    def linear(self, x: Any, weight: Any) -> Any:
        """(n, in) and (out, in) to (n, out)."""
        ...

    def norm(self, x: Any) -> Any:
        """RMS norm over the last dimension."""
        ...

    def gated(self, gate: Any, up: Any) -> Any:
        """SiLU of the one times the other."""
        ...

    def attention(self, q: Any, k: Any, v: Any) -> Any:
        """Of queries (n, H * d) on keys and values (m, KV * d), to (n, H * d), all of them seen."""
        ...

    def wait(self, x: Any) -> None:
        """Return when it is computed."""
        ...


def tokens_per_second(kit: Kit) -> float:
    """Tokens of the work, prompt and answer, by its best time in seconds."""
    layers = [{name: kit.full(*shape) for name, shape in _LAYER.items()} for _ in range(LAYERS)]
    context = [kit.full(PROMPT, KV_HEADS * HEAD_DIM) for _ in range(2)]
    prompt, token = kit.full(PROMPT, HIDDEN), kit.full(1, HIDDEN)

    def work() -> None:
        kit.wait(_pass(kit, layers, prompt, context))
        for _ in range(DECODED):
            kit.wait(_pass(kit, layers, token, context))

    return (PROMPT + DECODED) / _best(work)


def _pass(kit: Kit, layers: list[dict[str, Any]], x: Any, context: list[Any]) -> Any:
    for layer in layers:
        h = kit.norm(x)
        q, keys, values = (kit.linear(h, layer[name]) for name in "qkv")
        seen = (keys, values) if len(x) > 1 else context
        x = x + kit.linear(kit.attention(q, *seen), layer["o"])
        h = kit.norm(x)
        x = x + kit.linear(kit.gated(*(kit.linear(h, layer[name]) for name in ("gate", "up"))), layer["down"])
    return x


def _best(work: Callable[[], None]) -> float:
    work()
    times: list[float] = []
    while not times or sum(times) < _SECONDS:
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)
