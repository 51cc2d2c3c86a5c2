"""Many commands at once on a node that does not lead, over the real mesh."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from support.served import free_port
from support.voices import ANSWER_S, Voice, agreed

from actors.net.memory import MemoryHub
from actors.net.mesh import Mesh
from actors.net.mesh_settings import MeshSettings
from actors.net.transport import Transport
from actors.refusal import MailboxFull, Rejected
from events import commands as cmd

AT_ONCE = 20_000


class Meshed(Voice):
    """A node on the mesh, on loopback."""

    def __init__(self, name: str, directory: Path, port: int, peers: list[int]) -> None:
        super().__init__(name, MemoryHub(), directory)
        self._settings = MeshSettings(
            cluster=directory.parent.name,
            port=port,
            bind="127.0.0.1",
            multicast=False,
            seeds=tuple(f"127.0.0.1:{each}" for each in peers),
        )

    def network(self) -> Transport:
        return Mesh(self._settings)


def test_a_burst_breaks_no_link(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever is too much is refused at once; all the rest is answered, with the link it began with."""
    ports = [free_port(), free_port()]
    nodes = [
        Meshed(name, tmp_path / name, port, ports) for name, port in zip(("ann", "ben"), ports, strict=True)
    ]
    try:
        for node in nodes:
            node.start()
        leader = agreed(*nodes)
        follower = next(node for node in nodes if node.name != leader)
        caplog.set_level(logging.INFO, "cuebook.router")
        answers = []
        for number in range(AT_ONCE):
            command = cmd.RetryInstance(command_id=f"retry-{number}", instance_id="instance-x", by="a user")
            try:
                answers.append(follower.asking(command))
            except MailboxFull:
                continue
        assert len(answers) >= follower.master.incarnation.mailbox.bound // 2
        assert all(answer.wait(2 * ANSWER_S) for answer in answers)
        assert {type(answer.error) for answer in answers} <= {Rejected, MailboxFull}
        assert "is gone" not in caplog.text
    finally:
        for node in nodes:
            node.stop()
