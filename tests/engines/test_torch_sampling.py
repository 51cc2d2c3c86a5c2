"""Draws of the torch engine: the distribution is right, and a generator belongs to its request."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from engines.torch import sampling  # noqa: E402
from events.values import Sampling  # noqa: E402

LOGITS = st.lists(st.floats(-8, 8, width=32), min_size=2, max_size=40)
CPU = torch.device("cpu")


@given(LOGITS, st.floats(0, 0.999))
def test_the_nucleus_is_the_smallest_set_that_reaches_top_p(values: list[float], top_p: float) -> None:
    row = torch.tensor([values])
    kept = torch.isfinite(sampling.nucleus(row, top_p))[0].numpy()
    probs = row[0].double().softmax(dim=-1).numpy()
    least = probs[kept].min()
    assert kept[row[0].argmax()]  # of the logits: two probabilities may round to the same number
    assert probs[probs > least].sum() < top_p + 1e-5
    assert probs[kept].sum() >= top_p - 1e-5
    assert not kept[probs < least * (1 - 1e-5)].any()


@given(LOGITS, st.floats(1e-5, 1e6), st.floats(0, 1), st.integers(0, 2**64 - 1))
def test_any_valid_sampling_draws_a_token(values: list[float], t: float, top_p: float, seed: int) -> None:
    draw = sampling.TorchDrawing(CPU).sampler(Sampling(8, t, top_p, seed))
    assert 0 <= int(draw(torch.tensor([values]))) < len(values)
    assert getattr(draw, "error", None) is None


def test_frequencies_are_those_of_the_temperature() -> None:
    draw = sampling.SeededSampler(2.0, 1.0, 3, CPU)
    row = torch.tensor([[0.0, 1.0, 2.0]])
    counts = np.bincount([int(draw(row)) for _ in range(3000)], minlength=3)
    wanted = np.exp(np.array([0.0, 0.5, 1.0]))
    assert np.abs(counts / 3000 - wanted / wanted.sum()).max() < 0.03


def test_two_requests_do_not_share_chance() -> None:
    row = torch.zeros(1, 50)
    alone = sampling.SeededSampler(1.0, 1.0, 9, CPU)
    wanted = [int(alone(row)) for _ in range(20)]
    first, second = sampling.SeededSampler(1.0, 1.0, 9, CPU), sampling.SeededSampler(1.0, 1.0, 8, CPU)
    found = []
    for _ in range(20):
        torch.rand(1)
        second(row)
        found.append(int(first(row)))
    assert found == wanted
