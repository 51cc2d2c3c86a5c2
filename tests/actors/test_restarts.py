from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from actors.restarts import RestartHistory, RestartPolicy

POLICIES = st.builds(
    RestartPolicy,
    max_restarts=st.integers(0, 5),
    period_s=st.floats(0.1, 60),
    backoff_base_s=st.floats(0.01, 1),
    backoff_cap_s=st.floats(1, 30),
    jitter=st.floats(0, 1),
    quiet_s=st.floats(0.1, 100),
)
GAPS = st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 40)), max_size=60)


@given(POLICIES, GAPS, st.integers())
def test_never_more_restarts_than_allowed_and_escalation_only_when_used_up(
    policy: RestartPolicy, gaps: list[tuple[str, float]], seed: int
) -> None:
    history, now, restarts = RestartHistory(policy, Random(seed)), 0.0, list[float]()
    for child, gap in gaps:
        now += gap
        recent = [at for at in restarts if at > now - policy.period_s]
        if history.crashed(child, now) is None:
            assert len(recent) == policy.max_restarts
        else:
            restarts.append(now)
            assert len(recent) < policy.max_restarts


@given(POLICIES, st.integers(), st.integers(1, 40))
def test_backoff_doubles_up_to_its_cap_less_the_jitter(policy: RestartPolicy, seed: int, n: int) -> None:
    history, now = RestartHistory(unlimited(policy), Random(seed)), policy.quiet_s
    for crash in range(n):
        delay = history.crashed("a", now)
        assert delay is not None
        full = min(policy.backoff_cap_s, policy.backoff_base_s * 2**crash)
        assert full * (1 - policy.jitter) * 0.999 <= delay <= full
        now += delay


@given(POLICIES, st.integers(1, 20))
def test_a_quiet_time_starts_the_backoff_again_for_that_child_alone(policy: RestartPolicy, n: int) -> None:
    policy = unlimited(policy, jitter=0.0)
    history, now = RestartHistory(policy, Random(0)), policy.quiet_s
    for _ in range(n):
        delay = history.crashed("a", now)
        assert delay is not None
        now += delay
    before = history.crashed("a", now)
    assert before == min(policy.backoff_cap_s, policy.backoff_base_s * 2**n)
    assert history.crashed("b", now) == min(policy.backoff_cap_s, policy.backoff_base_s)
    assert history.crashed("a", now + before + policy.quiet_s * 1.001) == min(
        policy.backoff_cap_s, policy.backoff_base_s
    )


def test_jitter_spreads_children_that_crash_together() -> None:
    history = RestartHistory(RestartPolicy(max_restarts=100), Random(3))
    delays = {history.crashed(f"child-{n}", 100.0) for n in range(50)}
    assert len(delays) == 50


def test_a_crash_loop_of_years_does_not_overflow() -> None:
    history, now = RestartHistory(RestartPolicy(max_restarts=10**9), Random(0)), 100.0
    for _ in range(3000):
        delay = history.crashed("a", now)
        assert delay is not None
        assert delay <= 10
        now += delay


def unlimited(policy: RestartPolicy, jitter: float | None = None) -> RestartPolicy:
    return RestartPolicy(
        max_restarts=10**9,
        period_s=policy.period_s,
        backoff_base_s=policy.backoff_base_s,
        backoff_cap_s=policy.backoff_cap_s,
        jitter=policy.jitter if jitter is None else jitter,
        quiet_s=policy.quiet_s,
    )
