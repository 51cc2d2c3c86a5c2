"""Numbers, times and causes as people read them."""

from __future__ import annotations

from datetime import UTC, datetime

from events.values import Cause


def moment(at: float) -> str:
    """A time (Unix seconds) as UTC in ISO form with milliseconds, e.g. ``2026-05-01T12:30:00.250Z``."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


def size(n_bytes: int) -> str:
    """Bytes as people read them, e.g. ``1.25 GiB`` or ``270 MiB``."""
    if n_bytes >= 1 << 30:
        return f"{n_bytes / (1 << 30):.2f} GiB"
    return f"{n_bytes / (1 << 20):.0f} MiB"


def milliseconds(seconds: float) -> str:
    """A short time as people read it, e.g. ``0.42 ms`` or ``120 ms``."""
    value = seconds * 1000
    return f"{value:.0f} ms" if value >= 10 else f"{value:.2g} ms"


def count(n: int, thing: str) -> str:
    """A number of things, e.g. ``1 attempt`` or ``3 attempts``."""
    return f"{n} {thing}" if n == 1 else f"{n} {thing}s"


def parameters(n: int) -> str:
    """A number of parameters as people say it, e.g. ``135M`` or ``7.6B``."""
    return f"{n / 1e9:.1f}B" if n >= 1e9 else f"{n / 1e6:.0f}M"


def reason(cause: Cause) -> str:
    """The sentence of a cause, fit to follow a colon: without its full stop."""
    return cause.message.rstrip(". ") or cause.code
