"""What can go wrong with a log. Each error is a sentence that says what is so and what to do."""

from __future__ import annotations


class LogError(Exception):
    """Base of all errors of the log."""


class LogMissing(LogError):
    """There is no log at the path, or nothing has been written to it yet."""


class LogForeign(LogError):
    """The file is not a Cuebook log."""


class LogTooNew(LogError):
    """The log, or a body in it, was written by a newer version of Cuebook."""


class LogLocked(LogError):
    """Another process writes this log."""


class LogDamaged(LogError):
    """The log contradicts itself."""


class LogFailed(LogError):
    """A write failed. Whether it is on disk is not known: close the log and open it again."""


class DraftRefused(LogError):
    """The draft for ``command_id`` can't be recorded as it is. Nothing of its batch was written."""

    def __init__(self, message: str, command_id: str) -> None:
        super().__init__(message)
        self.command_id = command_id


class EntriesRefused(LogError):
    """Another node's decisions don't follow what the log has. Nothing was written; the log is well."""


class LogIncomplete(LogError):
    """What was asked for lies before the log's base: its older part has not arrived yet."""


class LogRewound(LogError):
    """The log was rewound while it was being read: what was read so far may be void. Read it again."""


class Unreadable(LogError):
    """A stored body can't be turned into an event or a command of this version."""


class DriverMissing(LogError):
    """The wanted SQLite driver is not installed."""
