"""Nodes on one switch find each other or don't, as they were told; who is turned away can be seen."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from support.lan import Lan, lan, one_log, state
from support.served import ServedNode, eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LONGER_S = 8.0
"""In which nodes that could find each other would have."""


def known(node: ServedNode) -> set[str]:
    """The names of all nodes that this node's log has ever heard of."""
    view = state(node)
    return set() if view is None else {each["name"] for each in view["nodes"].values()}


def refusals(node: ServedNode) -> dict[str, str]:
    """Host to reason, of all refusals in this node's log."""
    return {each["event"]["host"]: each["event"]["reason"] for each in node.events("PeerRefused")}


def start_apart(net: Lan) -> None:
    """Start nodes that will not all come together."""
    for node in net.nodes:
        node.start(wait=False)
    for node in net.nodes:
        eventually(lambda node=node: node.alive() and known(node), 60, node.output)


def test_three_nodes_meet_by_multicast(tmp_path: Path) -> None:
    with lan(tmp_path, 3) as net:
        one_log(*net.nodes)
        assert known(net.nodes[0]) == {"n1", "n2", "n3"}


def test_three_nodes_meet_by_a_list_of_peers(tmp_path: Path) -> None:
    with lan(tmp_path, 3, cluster_multicast=False, cluster_peers="10.77.0.1") as net:
        one_log(*net.nodes)
        # The list named only the first node: the others heard of each other from it.
        eventually(lambda: all(len(net.nodes[0].get("/state/nodes")) == 3 for _ in net.nodes))


def test_without_multicast_or_peers_nobody_is_found(tmp_path: Path) -> None:
    with lan(tmp_path, 2, start=False, cluster_multicast=False) as net:
        start_apart(net)
        time.sleep(LONGER_S)
        assert [known(node) for node in net.nodes] == [{"n1"}, {"n2"}]


def test_two_clusters_on_one_switch_do_not_mix(tmp_path: Path) -> None:
    with lan(tmp_path, 2, start=False) as net:
        net.add(cluster="other")
        net.add(cluster="other")
        start_apart(net)
        net.together(*net.nodes[:2])
        net.together(*net.nodes[2:])
        time.sleep(LONGER_S)
        assert [known(node) for node in net.nodes] == [{"n1", "n2"}] * 2 + [{"n3", "n4"}] * 2


def test_a_wrong_secret_is_refused_on_the_record_of_both(tmp_path: Path) -> None:
    with lan(tmp_path, 2) as net:
        stranger = net.add(cluster_secret="a secret of another switch")
        stranger.start(wait=False)
        eventually(lambda: stranger.alive() and known(stranger), 60, stranger.output)
        eventually(lambda: "10.77.0.3" in refusals(net.nodes[0]), 30)
        assert "secret of cluster 'lan'" in refusals(net.nodes[0])["10.77.0.3"]
        assert refusals(net.nodes[1]) == refusals(net.nodes[0])
        eventually(lambda: {"10.77.0.1", "10.77.0.2"} == refusals(stranger).keys(), 30)
        assert all("secret of cluster 'lan'" in reason for reason in refusals(stranger).values())
        eventually(lambda: "secret of cluster 'lan'" in stranger.output(), 10, stranger.output)
        assert known(net.nodes[0]) == {"n1", "n2"}
        assert known(stranger) == {"n3"}


def test_a_peer_of_another_cluster_says_so(tmp_path: Path) -> None:
    with lan(tmp_path, 1) as net:
        lost = net.add(cluster="other", cluster_peers="10.77.0.1")
        lost.start(wait=False)
        eventually(lambda: lost.alive() and known(lost) and refusals(lost), 60, lost.output)
        assert "same cluster name" in refusals(lost)["10.77.0.1"]
