"""Supervisors: they start children in order, restart what crashes, and stop them in reverse order.

After Erlang/OTP's supervisor. A supervisor holds no state of the business; a restart builds a new object,
which rebuilds its state from the log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from actors.actor import Actor
from actors.address import Address, Terminated
from actors.clock import Timer
from actors.refusal import Rejected, StartFailed
from actors.restarts import RestartHistory, RestartPolicy
from actors.system import Action, ActorIncident, describe
from events.values import Cause

Strategy = Literal["one_for_one", "one_for_all", "rest_for_one"]


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """How to make, restart and stop one child.

    ``start`` makes a new actor object, not yet started; it may use the ``address`` of other specs.
    ``restart``: permanent, always; transient, after a crash only; temporary, never. A child that is not
    restarted is forgotten. ``shutdown`` is how many seconds its end may take; a supervisor as child needs
    those of its own children. ``start_timeout`` is how many seconds `Actor.started` may take.
    """

    name: str
    start: Callable[[], Actor]
    restart: Literal["permanent", "transient", "temporary"] = "permanent"
    shutdown: float = 5.0
    start_timeout: float = 60.0
    address: Address = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "address", Address(self.name))


@dataclass(frozen=True, slots=True)
class AddChild:
    """Ask a supervisor to start one more child, last in order. The answer is its Address.

    The child is not there again after a restart of the supervisor itself. Raises StartFailed where it does
    not start, Rejected where the name is taken.
    """

    spec: ChildSpec


@dataclass(frozen=True, slots=True)
class StopChild:
    """Ask a supervisor to stop a child for good; answered when it has ended, also where it had before."""

    name: str


@dataclass(frozen=True, slots=True)
class _RestartDue:
    child: str


class Escalation(Exception):
    """A supervisor gave up: too many restarts in too short a time. Its own supervisor decides."""


@dataclass(slots=True)
class _Child:
    spec: ChildSpec
    actor: Actor | None = None
    """The running incarnation; None while it waits for its restart."""
    restarts: int = 0
    error: str = ""
    due: _RestartDue | None = None
    timer: Timer | None = None


class Supervisor(Actor):
    """``one_for_one`` restarts the crashed child, ``one_for_all`` all, ``rest_for_one`` it and those after.

    If a child fails to start with the supervisor, those before it are stopped and the supervisor fails to
    start as well. If it fails to start again, that is its next crash.
    """

    def __init__(
        self,
        children: Sequence[ChildSpec] = (),
        *,
        strategy: Strategy = "one_for_one",
        policy: RestartPolicy | None = None,
    ) -> None:
        super().__init__()
        self._strategy = strategy
        self._policy = policy or RestartPolicy()
        self._children = {spec.name: _Child(spec) for spec in children}

    def started(self) -> None:
        """Start all children, in order."""
        self._history = RestartHistory(self._policy, self.system.random)
        try:
            for child in self._children.values():
                self._start_child(child)
        except BaseException:
            self.stopping()
            raise

    def stopping(self) -> None:
        """Stop all children, in reverse order."""
        for child in reversed(self._children.values()):
            self._stop_child(child)

    def receive(self, message: Any) -> Any:
        """Handle AddChild, StopChild and the children's notices of death."""
        match message:
            case Terminated():
                self._ended(message)
            case _RestartDue():
                self._restart_due(message)
            case AddChild(spec):
                return self._add_child(spec)
            case StopChild(name):
                self._remove_child(name)
            case _:
                what = f"a supervisor does not handle {type(message).__name__}"
                raise Rejected(Cause(code="unknown_message", message=what))
        return None

    def _add_child(self, spec: ChildSpec) -> Address:
        if spec.name in self._children:
            raise Rejected(Cause(code="child_exists", message=f"{self.name} has a child {spec.name} already"))
        child = _Child(spec)
        self._start_child(child)
        self._children[spec.name] = child
        return spec.address

    def _remove_child(self, name: str) -> None:
        child = self._children.pop(name, None)
        if child is not None:
            self._stop_child(child)
            self._history.forget(name)

    def _start_child(self, child: _Child) -> None:
        try:
            actor = child.spec.start()
        except Exception as error:
            message = f"{child.spec.name} could not be made: {describe(error)}"
            raise StartFailed(Cause(code="start_failed", message=message)) from error
        actor.launch(child.spec.address, self.system)
        actor.wait_started(child.spec.start_timeout)
        child.actor = actor
        self.watch(child.spec.address)

    def _stop_child(self, child: _Child) -> None:
        child.due = None
        if child.timer is not None:
            child.timer.cancel()
        actor, child.actor = child.actor, None
        if actor is None:
            return
        actor.stop()
        if not actor.wait_stopped(child.spec.shutdown):
            actor.mailbox.close()
            child.error = f"did not stop within {child.spec.shutdown:g} s"
            self._report(child, "abandoned")

    def _ended(self, notice: Terminated) -> None:
        child = self._children.get(notice.actor)
        if child is None or child.actor is None or child.actor.actor_urn != notice.urn:
            return  # stopped by us
        child.actor = None
        restart = child.spec.restart
        if restart == "permanent" or (restart == "transient" and notice.cause is not None):
            self._schedule_restart(child, notice.cause)
            return
        self._remove_child(notice.actor)
        if notice.cause is not None:
            child.error = describe(notice.cause)
            self._report(child, "stopped")

    def _schedule_restart(self, child: _Child, cause: BaseException | None) -> None:
        child.error = describe(cause)
        delay = self._history.crashed(child.spec.name, self.clock.monotonic())
        if delay is None:
            self._report(child, "escalated")
            raise Escalation(f"{child.spec.name} crashed too often, last with {child.error}") from cause
        for sibling in reversed(self._group(child)):
            self._stop_child(sibling)
            if sibling.spec.restart == "temporary":
                self._remove_child(sibling.spec.name)
        child.due = _RestartDue(child.spec.name)
        child.timer = self.after(delay, child.due)

    def _restart_due(self, message: _RestartDue) -> None:
        child = self._children.get(message.child)
        if child is None or child.due is not message:
            return  # overtaken by a stop or by a restart of a larger group
        child.due = None
        for sibling in [each for each in self._group(child) if each.actor is None]:
            try:
                self._start_child(sibling)
            except StartFailed as failure:
                self._schedule_restart(sibling, failure.__cause__ or failure)
                return
            sibling.restarts += 1
        self._report(child, "restarted")

    def _group(self, child: _Child) -> list[_Child]:
        """Those who go down and come up with ``child``, in the order of their start."""
        children = list(self._children.values())
        if self._strategy == "one_for_one":
            return [child]
        return children if self._strategy == "one_for_all" else children[children.index(child) :]

    def _report(self, child: _Child, action: Action) -> None:
        self.system.report(
            ActorIncident(actor=child.spec.name, action=action, error=child.error, restarts=child.restarts)
        )
