"""A node in this process: its start with clear errors, its end on signals."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType

import msgspec

from actors.node import Node
from actors.refusal import StartFailed
from actors.settings import Settings
from api.cli.checks.port import bind_error, owner
from api.cli.console import complain, say
from api.cli.errors import CliError
from api.cli.log_files import log_to_files, warn_on_terminal
from api.server import ApiServer


class StopRequested(BaseException):
    """A signal asks the process to end. Not an `Exception`, so that nothing swallows it on its way out."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def run_node(settings: Settings, work: Callable[[Node], int]) -> int:
    """Run a node, do ``work`` with it, and stop it: when that is done, or on SIGINT or SIGTERM.

    Returns ``work``'s exit code, 0 after a signal. Raises `CliError` where the node can't start.
    """
    log_to_files(settings.home_path / "logs", settings.log_level)
    node = Node(settings, ApiServer)
    reason = "its command ended"
    warn_now = warn_on_terminal()
    with stop_on_signals() as stopping:
        _start(node)
        try:
            warn_now()
            return work(node)
        except StopRequested as stop:
            reason = f"signal {stop.name}"
            say(f"\nStopping ({stop.name}); a second Ctrl-C ends at once.")
            return 0
        finally:
            stopping()
            node.stop(reason)


def with_free_port(settings: Settings) -> Settings:
    """The settings with a port that can be had: a free one for 0. Raises `CliError` where it is taken."""
    host, port = settings.host, settings.api_port
    if port == 0:
        with socket.create_server((host, 0), family=_family(host)) as probe:
            return msgspec.structs.replace(settings, api_port=probe.getsockname()[1])
    if (error := bind_error(host, port)) is not None:
        raise CliError(
            f"Port {port} on {host} can't be used: {error}; {owner(port)}. Stop that one (`cuebook status` "
            f"shows it if it is a Cuebook node), or choose another port, such as --port {port + 1}."
        )
    return settings


@contextmanager
def stop_on_signals() -> Generator[Callable[[], None], None, None]:
    """Raise `StopRequested` in the main thread on the first SIGINT or SIGTERM; end at once on the second.

    Call what it gives when the end has come without a signal: then the first one ends at once.
    """
    asked = False

    def stopping() -> None:
        nonlocal asked
        asked = True

    def on_signal(number: int, _: FrameType | None) -> None:
        nonlocal asked
        if asked:
            complain("Ending at once.")
            # Runners end by themselves when their socket to this process closes; the log needs no goodbye.
            os._exit(128 + number)
        asked = True
        raise StopRequested(signal.Signals(number).name)

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _start(node: Node) -> None:
    try:
        node.start()
    except StopRequested as stop:
        # Half a node has no orderly end, and needs none: it has acknowledged nothing.
        os._exit(128 + signal.Signals[stop.name])
    except StartFailed as error:
        raise CliError(_innermost(error)) from error
    except OSError as error:
        home = node.settings.home_path
        raise CliError(
            f"{home} can't be used ({error}). Name another one with --home or CUEBOOK_HOME."
        ) from error


def _innermost(error: BaseException) -> str:
    """The sentence of what failed first: each supervisor above it has wrapped it in one of its own."""
    while isinstance(error, StartFailed) and error.cause.code == "start_failed" and error.__cause__:
        error = error.__cause__
    return str(error)


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
