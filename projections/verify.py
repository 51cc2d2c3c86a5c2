"""`verify`: decide everything in the log again, and compare the bytes."""

from __future__ import annotations

import msgspec

from events.reader import LogReader
from projections.deciding import Court, Decide, Difference, decisions_with_state, difference, recorded_outcome


class VersionCount(msgspec.Struct):
    """Decisions by another version of the decider: how many, and how many of them come out as recorded."""

    decisions: int = 0
    diverged: int = 0
    first_diverged: Difference | None = None


class VerifyReport(msgspec.Struct):
    """What `verify` found. ``first`` is the first difference among decisions of ``decider_version``."""

    decider_version: int
    checked: int = 0
    """Decisions of this version."""
    differences: int = 0
    """Of these, how many came out differently."""
    first: Difference | None = None
    other_versions: dict[int, VersionCount] = {}

    @property
    def ok(self) -> bool:
        """True where every decision of this version came out as recorded."""
        return self.differences == 0

    def render(self) -> str:
        """The report in words."""
        found = f"{self.checked} decisions of decider version {self.decider_version} decided again"
        lines = [f"{found}: {self.differences or 'no'} differences."]
        if self.first is not None:
            lines += ["The first:", self.first.render()]
        for version, other in sorted(self.other_versions.items()):
            same = other.decisions - other.diverged
            lines.append(
                f"{other.decisions} decisions of version {version}: {same} the same, "
                f"{other.diverged} diverged as of version {self.decider_version}."
            )
            if other.first_diverged is not None:
                lines += ["The first:", other.first_diverged.render()]
        return "\n".join(lines)


def verify(
    reader: LogReader,
    decide: Decide,
    *,
    refusal: type[Exception],
    decider_version: int,
    start: int = 0,
    upto: int | None = None,
) -> VerifyReport:
    """Decide every decision after number ``start`` again, on the state and facts that it was made with.

    ``refusal`` is the exception type with which ``decide`` refuses a command; it carries a ``cause``.
    The state is always the logged one: a difference does not beget others.
    """
    court = Court(decide, refusal)
    report = VerifyReport(decider_version)
    for decision, state in decisions_with_state(reader, start, upto):
        recorded, decided = recorded_outcome(decision), court.outcome(state, decision)
        same = recorded.encoded() == decided.encoded()
        found = None if same else difference(decision, recorded, decided)
        if decision.decider_version == decider_version:
            report.checked += 1
            report.differences += not same
            report.first = report.first or found
        else:
            other = report.other_versions.setdefault(decision.decider_version, VersionCount())
            other.decisions += 1
            other.diverged += not same
            other.first_diverged = other.first_diverged or found
    return report
