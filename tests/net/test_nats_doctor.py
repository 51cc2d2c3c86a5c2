"""What the doctor says of NATS servers: real ones, one without JetStream, one that is not there."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.nats_servers import NatsServer
from support.served import free_port

pytest.importorskip("nats", reason="nats-py is not installed; install cuebook[nats] for this test")

from actors.net.nats import NatsSettings
from actors.net.nats_doctor import Server, diagnose, findings


def test_each_server_is_asked_by_itself(tmp_path: Path) -> None:
    whole = NatsServer(tmp_path, "whole").start()
    bare = NatsServer(tmp_path, "bare", jetstream=False).start()
    absent = f"nats://somebody:secret@127.0.0.1:{free_port()}"
    try:
        found = diagnose(NatsSettings(servers=(whole.url, bare.url, absent)))
    finally:
        whole.kill()
        bare.kill()
    assert [finding.level for finding in found] == ["ok", "problem", "problem", "note"]
    assert "with JetStream answers at" in found[0].text
    assert "start it with -js" in found[1].text
    assert "No NATS server answers at 127.0.0.1" in found[2].text
    assert found[3].text.startswith("1 of 3 named servers can be used.")
    assert not [finding for finding in found if "secret" in finding.text]


@pytest.mark.parametrize("server", ["nats://10.0.0.7:port", "nats://[::1", ""])
def test_an_address_that_is_none_is_told(server: str) -> None:
    (problem, _) = diagnose(NatsSettings(servers=(server,)))
    assert "check that it runs and that the address, user and password are right" in problem.text


def test_three_servers_leave_nothing_to_note() -> None:
    servers = [Server(f"10.0.0.{n}:4222", version="2.10.0") for n in range(3)]
    assert [finding.level for finding in findings(servers)] == ["ok"] * 3
