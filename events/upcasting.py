"""Old bodies in today's shape: one pure function for each step from a version to the next.

When the shape of an event or command changes, raise its ``VERSION``, add the step from the old version to
`UPCASTS`, and leave the old body in the tests' corpus.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from events.errors import Unreadable

Body = dict[str, Any]
Upcast = Callable[[Body], Body]
Upcasts = Mapping[tuple[str, int], Upcast]
"""(type, version) to the function that makes a body of ``version + 1`` from one of ``version``."""

UPCASTS: Upcasts = {}


def upcast(upcasts: Upcasts, type_name: str, stored: int, current: int, body: Body) -> Body:
    """The body of version ``stored`` as one of version ``current``.

    Raises `Unreadable` where a step is missing.
    """
    for version in range(stored, current):
        step = upcasts.get((type_name, version))
        if step is None:
            raise Unreadable(
                f"events.upcasting has no step from version {version} of {type_name} to the next."
            )
        body = step(body)
    return body
