"""The entry point: every command explains itself, and nothing ends in a traceback."""

from __future__ import annotations

import socket
import subprocess
import threading
from importlib.metadata import version
from pathlib import Path

import pytest
from support.command import PROGRAM, Cuebook, environment

from api.cli.main import COMMANDS

NO_PORT = ["browse", "--listen", "70000"]


@pytest.fixture
def alone(tmp_path: Path) -> Cuebook:
    """Commands with an empty home and no node."""
    return Cuebook(tmp_path)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(alone: Cuebook, name: str) -> None:
    shown = alone(name, "--help")
    assert shown.code == 0
    assert shown.out.startswith(f"usage: cuebook {name}")
    assert "--home" in shown.out or "{" in shown.out or "..." in shown.out


def test_overview_names_every_command(alone: Cuebook) -> None:
    shown = alone("--help")
    assert shown.code == 0
    for name, summary in COMMANDS.items():
        assert name in shown.out
        assert summary in shown.out
    assert alone().out == shown.out


def test_version_is_that_of_the_distribution(alone: Cuebook) -> None:
    assert alone("--version").out.strip() == f"cuebook {version('cuebook')}"


def test_what_is_not_understood_is_code_2(alone: Cuebook) -> None:
    for words in (
        ["perform"],
        ["place"],
        ["replay"],
        ["replay", "how"],
        ["serve", "--port", "many"],
        NO_PORT,
    ):
        done = alone(*words)
        assert done.code == 2, words
        assert "error:" in done.err


@pytest.mark.parametrize("words", [["--port", "9"], ["--port", "9", "list"], ["list", "--port", "9"]])
def test_models_alone_takes_what_its_list_takes(alone: Cuebook, words: list[str]) -> None:
    shown = alone("models", "--json", *words)
    assert (shown.code, "127.0.0.1:9" in shown.err) == (1, True), shown.err


@pytest.mark.parametrize(
    "words",
    [["status"], ["models"], ["place", "tiny"], ["chat", "-m", "hello"], ["chat", "tiny", "-m", "hello"]],
)
def test_without_a_node_the_sentence_says_how_to_start_one(alone: Cuebook, words: list[str]) -> None:
    done = alone(*words)
    assert done.code == 1
    assert "No node answers at http://127.0.0.1:1" in done.err
    assert "cuebook serve" in done.err
    assert done.out == ""


@pytest.mark.parametrize("words", [["replay", "timeline"], ["replay", "verify"], ["browse"]])
def test_without_a_log_the_sentence_says_so(alone: Cuebook, words: list[str]) -> None:
    done = alone(*words)
    assert done.code == 1
    assert "log.db" in done.err
    assert "node" in done.err


def test_another_server_than_a_node_is_told(alone: Cuebook) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        other = threading.Thread(target=_answer_with_a_page, args=(server,))
        other.start()
        done = alone("status", "--port", str(server.getsockname()[1]))
        other.join()
    assert done.code == 1
    assert "is no Cuebook node" in done.err


def _answer_with_a_page(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>")


def test_a_terminal_that_lacks_a_character_gets_a_question_mark(
    monkeypatch: pytest.MonkeyPatch, cuebook: Cuebook, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    done = cuebook("replay", "rebuild", "--to", str(tmp_path / "b\u00fchne.db"))
    assert (done.code, "b?hne.db" in done.out) == (0, True)


def test_a_reader_that_has_enough_is_no_error(cuebook: Cuebook) -> None:
    piped = subprocess.run(
        ["bash", "-c", f"{' '.join(PROGRAM)} replay timeline | head -n 1; echo ${{PIPESTATUS[0]}}"],
        env=environment(home=cuebook.home),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert piped.stdout.splitlines()[-1] == "0"
    assert piped.stderr == ""
