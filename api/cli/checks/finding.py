"""What a check has to say."""

from __future__ import annotations

from typing import Literal

import msgspec

Level = Literal["ok", "warn", "fail"]


class Finding(msgspec.Struct, frozen=True):
    """One line of the report. ``advice`` says what to do; it is empty where there is nothing to do.

    ``warn``: it works, but worse than it could. ``fail``: something that was asked for will not work.
    """

    level: Level
    subject: str
    text: str
    advice: str = ""
