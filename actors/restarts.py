"""How often and how fast a supervisor restarts: intensity and backoff, after Erlang/OTP and Akka."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """At most ``max_restarts`` in any ``period_s`` seconds; one more, and the supervisor escalates.

    The n-th crash in a row of one child waits ``backoff_base_s * 2**(n - 1)`` seconds, at most
    ``backoff_cap_s``, less up to ``jitter`` of itself. A child that stayed up for ``quiet_s`` seconds
    starts again at n = 1.
    """

    max_restarts: int = 5
    period_s: float = 30.0
    backoff_base_s: float = 0.1
    backoff_cap_s: float = 10.0
    jitter: float = 0.5
    quiet_s: float = 60.0


@dataclass(slots=True)
class _Streak:
    crashes: int = 0
    up_at: float = 0.0


class RestartHistory:
    """The crashes of one supervisor's children. Pure: time and chance come from the caller."""

    def __init__(self, policy: RestartPolicy, random: Random) -> None:
        self._policy = policy
        self._random = random
        self._restarts: deque[float] = deque()
        self._streaks: dict[str, _Streak] = {}

    def crashed(self, child: str, now: float) -> float | None:
        """Note a crash at ``now``. Returns the seconds until the restart, or None: escalate."""
        while self._restarts and self._restarts[0] <= now - self._policy.period_s:
            self._restarts.popleft()
        if len(self._restarts) >= self._policy.max_restarts:
            return None
        self._restarts.append(now)
        return self._backoff(self._streaks.setdefault(child, _Streak()), now)

    def forget(self, child: str) -> None:
        """The child is gone for good."""
        self._streaks.pop(child, None)

    def _backoff(self, streak: _Streak, now: float) -> float:
        policy = self._policy
        if now - streak.up_at >= policy.quiet_s:
            streak.crashes = 0
        doubled = policy.backoff_base_s * 2.0 ** min(streak.crashes, 60)
        delay = min(policy.backoff_cap_s, doubled) * (1 - policy.jitter * self._random.random())
        streak.crashes += 1
        streak.up_at = now + delay
        return delay
