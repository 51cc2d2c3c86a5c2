"""What ends a command early. Each error is a sentence for the person at the terminal."""

from __future__ import annotations


class CliError(Exception):
    """The command can't do what was asked; the message says why and what to do. Exit code 1."""


class NotInstalled(CliError):
    """An optional part is missing; the message names the extra that brings it."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(
            f"{what} is not installed. Install it with: pip install 'cuebook[{extra}]' "
            f"(in a clone of the repository: pip install '.[{extra}]')."
        )
