"""`what_if`: the same history under another decider, such as one with another placement policy."""

from __future__ import annotations

import msgspec

from events.reader import LogReader
from projections.deciding import Court, Decide, Difference, decisions_with_state, difference


class WhatIf(msgspec.Struct):
    """Which of ``decisions`` the other decider would have made differently."""

    decisions: int = 0
    changed: list[Difference] = []

    def render(self) -> str:
        """The report in words."""
        head = f"{len(self.changed)} of {self.decisions} decisions would change"
        return "\n".join([head + (":" if self.changed else "."), *(each.render() for each in self.changed)])


def what_if(
    reader: LogReader,
    decide_logged: Decide,
    decide_other: Decide,
    *,
    refusal: type[Exception],
    start: int = 0,
    upto: int | None = None,
) -> WhatIf:
    """Decide the history again with both deciders, each decision on the state that it was made on.

    ``decide_logged`` is today's decider, with which ``decide_other`` is compared rather than with the log:
    so only the other policy shows, not what has changed in the code since. Each answer is to the question
    "what would it have decided then", not "where would we be now": the state stays the logged one.
    """
    logged, other = Court(decide_logged, refusal), Court(decide_other, refusal)
    report = WhatIf()
    for decision, state in decisions_with_state(reader, start, upto):
        report.decisions += 1
        was, would_be = logged.outcome(state, decision), other.outcome(state, decision)
        if was.encoded() != would_be.encoded():
            report.changed.append(difference(decision, was, would_be))
    return report
