"""Nodes that know each other by certificates of one authority, and a stranger with another's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.authority import Authority
from support.command import Cuebook
from support.lan import one_log
from support.loopback import Loopback
from support.served import ServedNode, eventually

from actors.net.certificates import Certificates


def of(files: Certificates) -> dict[str, Any]:
    """The settings that name these files."""
    return {
        "cluster_authority": files.authority,
        "cluster_certificate": files.certificate,
        "cluster_key": files.key,
    }


def reasons(node: ServedNode) -> list[str]:
    return [each["event"]["reason"] for each in node.events("PeerRefused")]


def test_certificates_join_two_nodes_and_keep_a_stranger_out(tmp_path: Path) -> None:
    net = Loopback(tmp_path, 3)
    *ours, stranger = net.nodes
    authority = Authority(tmp_path, "ours")
    given = [*map(of, map(authority.sign, ("desk", "shelf"))), of(Authority(tmp_path, "theirs").sign("door"))]
    for node, settings in zip(net.nodes, given, strict=True):
        node.set(**settings)
        node.start(wait=False)
    try:
        net.together(*ours)
        net.together(stranger)
        one_log(*ours)
        assert ours[0].get("/state")["nodes"].keys() == {"desk", "shelf"}
        for node in (ours[0], stranger):
            eventually(lambda node=node: reasons(node), 30, node.output)

        doctor = Cuebook(ours[1].home, ours[1].port)
        checked = doctor("doctor", "--json", **ours[1].settings)
        assert "by the certificate of shelf" in checked.out
        found = [each["text"] for each in doctor("doctor", "--network", "--json", **ours[1].settings).json]
        assert any("This node answers on the mesh port" in text for text in found), found
        assert any("n1 (desk) at 127.0.0.1" in text and "accepts this node" in text for text in found), found
        # Neither the doctor beside its running node nor anything but the stranger was turned away.
        for node in (ours[0], stranger):
            assert all("certificates of the same authority" in each for each in reasons(node)), reasons(node)
    finally:
        net.stop()
