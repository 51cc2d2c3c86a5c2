"""The roots of the two message families: what happened (events) and what is asked or seen (commands)."""

from __future__ import annotations

from typing import ClassVar

import msgspec


class Value(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An immutable value that events, commands and state share.

    Defaults are written out when a value is encoded: a default that changes later must not change what an
    old record says.
    """


class Event(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag_field="type", tag=True):
    """Something that happened. Its class name is its type in the log.

    ``VERSION`` is the shape of the body. Raise it when a field is renamed, removed or changes its meaning,
    and add the upcast from the old shape to `events.upcasting`.
    """

    VERSION: ClassVar[int] = 1
    SUBJECT: ClassVar[str] = ""
    """Name of the field whose value is the log's ``subject`` column: the entity that the event is about."""
    OBSERVATION: ClassVar[bool] = False
    """True where losing the event in a power cut costs nothing: it is a reading that will be taken again."""

    @property
    def subject(self) -> str:
        """The id of the entity that the event is about."""
        return getattr(self, self.SUBJECT)


class Command(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag_field="type", tag=True):
    """Something asked for. ``command_id`` is the idempotency key, unique for ever in one log.

    ``VERSION`` is the shape of the body, as it is for an event.
    """

    command_id: str

    VERSION: ClassVar[int] = 1

    DECIDER: ClassVar[str] = "cluster"


class Report(Command, frozen=True, kw_only=True, gc=False):
    """Something seen by ``origin``, a node. A report that changes nothing leaves no record."""

    origin: str
