"""Identifiers. A decision's ids come from its seed, so that deciding again draws the same ones."""

from __future__ import annotations

import hashlib
import secrets


def fresh(kind: str) -> str:
    """A new random id such as ``cmd-9f2c41d07a3b6e58``. For the edge only, never inside a decision."""
    return f"{kind}-{secrets.token_hex(8)}"


def fresh_seed() -> str:
    """A new random seed for a decision's ids."""
    return secrets.token_hex(12)


def drawn(kind: str, seed: str, *position: int) -> str:
    """The id at ``position`` in the sequence that ``seed`` starts, such as ``task-1f0c...``."""
    return f"{kind}-{_digest(kind, seed, position).hex()[:16]}"


def drawn_int(kind: str, seed: str, *position: int) -> int:
    """A number in ``[0, 2**31)`` at ``position`` in the sequence that ``seed`` starts."""
    return int.from_bytes(_digest(kind, seed, position)[:4], "big") >> 1


def _digest(kind: str, seed: str, position: tuple[int, ...]) -> bytes:
    return hashlib.blake2b(f"{seed}/{kind}/{position}".encode(), digest_size=16).digest()
