"""Draws: the distribution is right, a key belongs to its request, and an error stays in its row."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.contract import Refused
from engines.mlx import sampling
from engines.sampling import check
from events.values import Sampling

LOGITS = st.lists(st.floats(-8, 8, width=32), min_size=2, max_size=40)


def _sampling(**changes: object) -> Sampling:
    fields = {"max_tokens": 8, "temperature": 1.0, "top_p": 1.0, "seed": 5} | changes
    return Sampling(**fields)  # type: ignore[arg-type]


def _logprobs(values: list[float]) -> mx.array:
    row = mx.array([values])
    return row - mx.logsumexp(row, axis=-1, keepdims=True)


@given(LOGITS, st.floats(0, 0.999))
def test_the_nucleus_is_the_smallest_set_that_reaches_top_p(values: list[float], top_p: float) -> None:
    kept = np.isfinite(np.array(sampling.nucleus(_logprobs(values), top_p))[0])
    probs = np.exp(np.array(_logprobs(values))[0].astype(np.float64))
    probs /= probs.sum()
    least = probs[kept].min()
    assert kept[probs.argmax()]
    assert probs[probs > least].sum() < top_p + 1e-5
    assert probs[kept].sum() >= top_p - 1e-5
    assert not kept[probs < least * (1 - 1e-5)].any()


@given(LOGITS, st.floats(1e-5, 1e6), st.floats(0, 1), st.integers(0, 2**64 - 1))
def test_any_valid_sampling_draws_a_token(values: list[float], t: float, top_p: float, seed: int) -> None:
    wanted = _sampling(temperature=t, top_p=top_p, seed=seed)
    check(wanted)
    draw = sampling.sampler(wanted)
    assert 0 <= int(draw(_logprobs(values)).item()) < len(values)  # type: ignore[arg-type]
    assert getattr(draw, "error", None) is None


def test_frequencies_are_those_of_the_temperature() -> None:
    row = _logprobs([0.0, 1.0, 2.0])
    draw = sampling.SeededSampler(2.0, 1.0, seed=3)
    counts = np.bincount([int(draw(row).item()) for _ in range(3000)], minlength=3)  # type: ignore[arg-type]
    wanted = np.exp(np.array([0.0, 0.5, 1.0]))
    assert np.abs(counts / 3000 - wanted / wanted.sum()).max() < 0.03


def test_two_requests_do_not_share_chance() -> None:
    row = _logprobs([0.0] * 50)
    alone = sampling.SeededSampler(1.0, 1.0, seed=9)
    wanted = [int(alone(row).item()) for _ in range(20)]  # type: ignore[arg-type]
    first, second = sampling.SeededSampler(1.0, 1.0, seed=9), sampling.SeededSampler(1.0, 1.0, seed=8)
    mx.random.seed(1)
    found = []
    for _ in range(20):
        mx.random.uniform()
        second(row)
        found.append(int(first(row).item()))  # type: ignore[arg-type]
    assert found == wanted


def test_greedy_requests_share_one_sampler() -> None:
    assert sampling.sampler(_sampling(temperature=0.0)) is sampling.sampler(
        _sampling(temperature=0.0, seed=1)
    )
    assert sampling.sampler(_sampling(temperature=1e-9)) is sampling.sampler(_sampling(temperature=0.0))


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": float("inf")},
        {"temperature": -0.1},
        {"top_p": -0.1},
        {"top_p": float("nan")},
        {"seed": 2**64},
        {"max_tokens": -1},
        {"logprobs": 21},
        {"stop": ["ok", ""]},
    ],
)
def test_what_no_sampler_can_honour_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(Refused) as refused:
        check(_sampling(**changes))
    assert refused.value.cause.code == "invalid_sampling"
    assert next(iter(changes)).split("_")[0] in refused.value.cause.message
