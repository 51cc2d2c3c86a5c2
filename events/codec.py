"""Bodies as JSON text: one encoder whose bytes depend on the value alone, one decoder for each union."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import msgspec

from events.base import Command, Event
from events.catalogue import EVENT_TYPES, ClusterEvent
from events.commands import COMMAND_TYPES, ClusterCommand, Facts
from events.errors import LogTooNew, Unreadable
from events.upcasting import UPCASTS, Upcasts, upcast
from events.values import Cause

Message = TypeVar("Message", Event, Command)

_ENCODER = msgspec.json.Encoder(order="deterministic")


def encode(value: object) -> str:
    """The JSON text of an event, a command or a value. Equal values give equal text."""
    return _ENCODER.encode(value).decode()


class Codec(Generic[Message]):
    """Reads the stored bodies of one family of messages, old versions included.

    ``union`` is what bodies decode to, ``types`` its classes by name, ``upcasts`` the steps from old shapes.
    """

    def __init__(self, union: object, types: Mapping[str, type[Message]], upcasts: Upcasts) -> None:
        self._decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(
            union  # pyright: ignore[reportArgumentType]
        )
        self._union: Any = union
        self._types = types
        self._upcasts = upcasts

    @property
    def decode_current(self) -> Callable[[str], Message]:
        """The bare decoder, for bodies known to be of the current version."""
        return self._decoder.decode

    def decode(self, type_name: str, version: int, body: str) -> Message:
        """The message of a stored body. Raises `Unreadable`, or `LogTooNew` for a later version."""
        cls = self._types.get(type_name)
        if cls is None:
            raise LogTooNew(f"This version of Cuebook knows no {type_name}: read the log with the newer one.")
        if version > cls.VERSION:
            raise LogTooNew(
                f"A {type_name} has version {version} and this version of Cuebook reads up to "
                f"{cls.VERSION}: read the log with the newer one."
            )
        try:
            if version == cls.VERSION:
                return self._decoder.decode(body)
            old = upcast(self._upcasts, type_name, version, cls.VERSION, msgspec.json.decode(body))
            return msgspec.convert(old, self._union)
        except msgspec.MsgspecError as error:
            raise Unreadable(f"A {type_name} of version {version} can't be read: {error}") from error


EVENTS: Codec[Event] = Codec(ClusterEvent, EVENT_TYPES, UPCASTS)
COMMANDS: Codec[Command] = Codec(ClusterCommand, COMMAND_TYPES, UPCASTS)

decode_facts = msgspec.json.Decoder(Facts).decode
decode_cause = msgspec.json.Decoder(Cause).decode
