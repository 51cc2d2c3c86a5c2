"""A node that a command runs: what it says to try next, and signals while it stops."""

from __future__ import annotations

import os
import signal

import pytest

from actors.settings import load_settings
from api.cli.hints import command_line
from api.cli.process import StopRequested, stop_on_signals


class Ended(BaseException):
    """Stands for the end of the process."""


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def end(code: int) -> None:
        raise Ended(code)

    monkeypatch.setattr("api.cli.process.os._exit", end)


@pytest.mark.usefixtures("ends")
def test_the_first_signal_asks_and_the_second_one_ends() -> None:
    with stop_on_signals():
        with pytest.raises(StopRequested):
            os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(Ended):
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.usefixtures("ends")
def test_a_signal_to_what_stops_already_ends_it() -> None:
    with stop_on_signals() as stopping:
        stopping()
        with pytest.raises(Ended):
            os.kill(os.getpid(), signal.SIGINT)


def test_what_to_try_next_finds_a_node_on_another_address() -> None:
    def hint(host: str) -> str:
        settings = load_settings({"host": host, "api_port": 8080})
        return command_line(settings, "status", client=True)

    assert hint("10.0.0.5").endswith("status --host 10.0.0.5 --port 8080")
    assert hint("0.0.0.0").endswith("status --port 8080")
