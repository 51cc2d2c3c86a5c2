"""`cuebook serve`: what it says, what it refuses, how it ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path

import psutil
import pytest
from support.command import PROGRAM, Cuebook, environment
from support.served import ServedNode, eventually, free_port
from support.tiny import tiny_model_dir

from events.reader import LogReader


def test_it_says_where_things_are(served: ServedNode) -> None:
    screen = (served.home / "output.txt").read_text()
    for where in (served.url, f"{served.url}/v1", str(served.log), str(served.home / "logs" / "node.log")):
        assert where in screen
    assert "authentication" not in screen
    assert (served.home / "logs" / "node.log").exists()


def test_a_taken_port_is_refused_with_who_has_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = Cuebook(tmp_path, port)("serve")
    assert refused.code == 1
    assert f"Port {port} on 127.0.0.1 can't be used" in refused.err
    assert f"process {os.getpid()}" in refused.err
    assert f"--port {port + 1}" in refused.err
    assert not (tmp_path / "log.db").exists()


def test_a_home_that_is_in_use_is_refused_with_who_has_it(served: ServedNode) -> None:
    refused = Cuebook(served.home, free_port())("serve")
    assert refused.code == 1
    assert f"pid {served.pid}" in refused.err
    assert len(refused.err.strip().splitlines()) == 1


def test_a_home_that_cannot_be_made_is_refused() -> None:
    refused = Cuebook(Path("/proc/cuebook"), free_port())("serve")
    assert refused.code == 1
    assert "--home or CUEBOOK_HOME" in refused.err


def test_a_wrong_setting_is_refused(tmp_path: Path) -> None:
    refused = Cuebook(tmp_path, 1)("serve", decode_timeout_s="0")
    assert refused.code == 1
    assert "decode_timeout_s must be above 0" in refused.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_it_cleanly(number: signal.Signals, tmp_path: Path) -> None:
    """As a terminal does it: the signal goes to the runners as well."""
    tiny_model_dir(tmp_path / "models" / "tiny")
    port = free_port()
    process = subprocess.Popen(
        [*PROGRAM, "serve"],
        env=environment(home=tmp_path, api_port=port),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    placed = Cuebook(tmp_path, port)
    eventually(lambda: placed("status").code == 0, 60)
    eventually(lambda: placed("place", "tiny", "--context", "64", "--wait").code == 0, 60)
    runners = psutil.Process(process.pid).children()
    os.killpg(process.pid, number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert f"Stopping ({number.name})" in output
    assert not psutil.wait_procs(runners, timeout=30)[1]
    with LogReader.open(tmp_path / "log.db") as reader:
        stopped = list(reader.events(types=["NodeStopped"]))[-1].event
        told = list(reader.events())[-1].event
    assert stopped.clean
    assert number.name in stopped.cause.message
    assert told == stopped


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    """The first one lets an open answer end, which takes its time."""
    tiny_model_dir(tmp_path / "models" / "endless", endless=True)
    with ServedNode(tmp_path) as node:
        node.ready(node.place("endless", context=4096, batch=1))
        process = psutil.Process(node.pid)
        runners = process.children()
        answer = node.stream({"model": "endless", "messages": [{"role": "user", "content": "go"}]})
        next(answer)
        process.send_signal(signal.SIGINT)
        eventually(lambda: "Stopping (SIGINT)" in node.output())
        process.send_signal(signal.SIGINT)
        eventually(lambda: process.status() == psutil.STATUS_ZOMBIE)
        assert not psutil.wait_procs(runners, timeout=30)[1]
        assert "Ending at once" in node.output()
    assert Cuebook(tmp_path)("replay", "verify").code == 0


def test_a_signal_that_another_thread_gets_stops_it_too(tmp_path: Path) -> None:
    with ServedNode(tmp_path) as node:
        process = psutil.Process(node.pid)
        process.suspend()  # the system then gives the signal to any thread
        process.send_signal(signal.SIGTERM)
        process.resume()
        eventually(lambda: process.status() == psutil.STATUS_ZOMBIE, explain=node.output)


def test_port_0_takes_a_free_port(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*PROGRAM, "serve"], env=environment(home=tmp_path, api_port=0), stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(2)]
        url = lines[1].split()[1]
        port = int(url.rpartition(":")[2])
        assert Cuebook(tmp_path, port)("status").code == 0
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
