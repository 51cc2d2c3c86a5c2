"""What a worker itself reports: ends of runners and tasks that no supervisor tells of, and offers."""

from __future__ import annotations

from collections.abc import Callable

from actors.plan import LocalRunner
from actors.reporter import Reporter
from events import commands as cmd
from events import status as st
from events.ids import fresh
from events.values import Policy


class WorkerReports:
    """Reports of one node's worker."""

    def __init__(self, node_id: str, policy: Policy, reporter: Reporter) -> None:
        self._node_id = node_id
        self._policy = policy
        self._reporter = reporter

    def runner(self, runner_id: str, status: st.RunnerStatus) -> None:
        """A runner's status."""
        self._reporter.send(
            cmd.ReportRunner(
                command_id=fresh("report"),
                origin=self._node_id,
                runner_id=runner_id,
                status=status,
                policy=self._policy,
            )
        )

    def task(self, task_id: str, outcome: cmd.Stopped | cmd.Broken) -> None:
        """The end of a task that no runner has."""
        self._reporter.send(
            cmd.ReportTask(command_id=fresh("report"), origin=self._node_id, task_id=task_id, outcome=outcome)
        )

    def adoptable(self, local: LocalRunner, refused: Callable[[], None]) -> None:
        """A runner that may carry on, with its group; ``refused`` is called where it may not."""
        report = cmd.ReportAdoptable(
            command_id=fresh("report"),
            origin=self._node_id,
            instance_id=local.instance_id,
            placement=local.placement,
            processes=local.processes,
            incarnations=local.incarnations,
            card=local.model.card if local.model else None,
            source=local.model.source if local.model else None,
        )
        self._reporter.send(report, refused)
