"""Refused links, told to people once in a while and not with every try."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

AGAIN_S = 600.0
"""Seconds in which the same refusal isn't told again."""
MAX_TOLD = 100
"""Refusals told in that time: each gets into the log, and a stranger can make up as many as it likes."""

logger = logging.getLogger(__name__)


class Refusals:
    """Makes a sentence of each refusal and passes it on."""

    def __init__(
        self, refused: Callable[[str, str], None], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._refused = refused
        self._now = now
        self._told: dict[tuple[str, str], float] = {}

    def tell(self, host: str, why: str, *, by_peer: bool = False) -> None:
        """``by_peer``: the other side minded, and ``why`` is what it said about this node."""
        subject = "There this node is refused" if by_peer else "No link"
        sentence = "".join(each if each.isprintable() else "?" for each in f"{subject}: {why[:1_000]}")
        key, now = (host, sentence), self._now()
        self._told = {each: at for each, at in self._told.items() if now - at < AGAIN_S}
        if key in self._told or len(self._told) >= MAX_TOLD:
            return
        self._told[key] = now
        try:
            self._refused(host, sentence)
        except Exception:
            logger.exception("A handler of the mesh failed")
