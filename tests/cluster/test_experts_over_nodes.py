"""Experts over two nodes of a cluster move while they serve, also while who leads the cluster is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from support.lan import one_log
from support.loopback import Loopback
from support.moving_experts import (
    MIXTURE,
    RESTLESS,
    SPREAD,
    Traffic,
    at_rest,
    check_log,
    check_moves,
    in_mid_migration,
    pids,
    restless_mixture,
    truth,
)

from events.check import check

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def test_experts_move_between_nodes_and_the_master_dies_meanwhile(tmp_path: Path) -> None:
    """The master's node has no rank: its death costs no answer, and the migration comes to its end."""
    models = restless_mixture(tmp_path)
    net = Loopback(tmp_path, 3, engines="torch", cpu_devices=1, models_read_only_dirs=models)
    one, two, leader = net.nodes
    leader.set(engines="mlx")
    try:
        leader.start()
        one.start(wait=False)
        two.start(wait=False)
        net.together(*net.nodes)
        assert net.master(one) is leader
        said = truth(leader, engine="torch")
        instance_id = leader.place(MIXTURE, ranks=2, eplb=RESTLESS, **SPREAD)
        leader.ready(instance_id, 120)
        ranks = leader.get(f"/instance/{instance_id}")["placement"]["ranks"]
        assert {rank["node_id"] for rank in ranks} == {net.node_id(one), net.node_id(two)}
        runners = pids(one, instance_id)
        with Traffic(leader.url, instance_id, said) as through_leader:
            check_moves(leader, instance_id, through_leader)
        assert not through_leader.errors

        with Traffic(one.url, instance_id, said) as first, Traffic(two.url, instance_id, said) as second:
            struck = in_mid_migration(two, instance_id, "applying", layers=2)
            leader.kill()
            assert struck.end(two) == "sealed"
            net.together(one, two)
            (sealed,) = [e for e in two.events("ExpertEpochSealed") if struck.is_of(e["event"])]
            assert struck.before < two.events("EpochStarted")[-1]["seq"] < sealed["seq"]
            check_moves(two, instance_id, second)
        for traffic in (first, second):
            assert not traffic.errors
            assert not traffic.cut
        assert pids(two, instance_id) == runners, "a model was loaded anew"
        at_rest(two, instance_id)
        one_log(one, two)
        assert all(check(node.log).ok for node in (one, two))
    finally:
        net.stop()
    check_log(one)
