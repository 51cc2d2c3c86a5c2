"""Clients: they send commands to any node, and again with the same id until they have an answer."""

from __future__ import annotations

from support.cards import SMALL
from support.sim.checks import Checks
from support.sim.master import Answer
from support.sim.node import Node
from support.sim.world import World

from events import commands as cmd
from events.base import Command
from events.values import PlacementSettings

TRIES = 6
MAX_INSTANCES = 4


class Clients:
    """Commands at random moments until `close`."""

    def __init__(self, world: World, nodes: list[Node], checks: Checks, every: float) -> None:
        self._world = world
        self._nodes = nodes
        self._checks = checks
        self._every = every
        self._numbers = 0
        self._open = True
        self.sent = self.answered = 0
        world.after(1.0, self._next)

    def close(self) -> None:
        """Send nothing new; what is under way goes on."""
        self._open = False

    def _next(self) -> None:
        if self._open:
            alive = [node for node in self._nodes if node.alive]
            if alive:
                self.sent += 1
                self._try(self._command(self._world.random.choice(alive)), TRIES)
            self._world.after(self._world.random.expovariate(1 / self._every), self._next)

    def _try(self, command: Command, tries: int) -> None:
        """Ask a node. No answer, or none in time: ask another."""
        alive = [node for node in self._nodes if node.alive]
        settled = False

        def settle(answer: Answer | None) -> None:
            nonlocal settled
            if settled:
                return
            settled = True
            if answer is not None:
                self.answered += 1
                if answer.decision is not None:
                    self._checks.acknowledged.append(answer.decision)
            elif tries > 1:
                self._world.after(self._world.between(0.1, 1.0), self._try, command, tries - 1)

        if alive:
            self._world.random.choice(alive).ask(command, settle)
        self._world.after(3.0, settle, None)

    def _command(self, node: Node) -> Command:
        """One that makes sense in the state as a node knows it."""
        self._numbers += 1
        command_id = f"cmd-{self._numbers}"
        random, state = self._world.random, node.state
        draw = random.random()
        ready = [i for i in state.instances.values() if i.status == "ready"]
        if len(state.instances) < 1 + draw * MAX_INSTANCES / 2 or (draw < 0.1 and not ready):
            settings = PlacementSettings(context=512, batch=1, ranks=random.choice((0, 0, 0, 2)))
            return cmd.PlaceInstance(command_id=command_id, model_id=SMALL.model_id, settings=settings)
        if draw < 0.05 and len(state.instances) > 1:
            return cmd.DeleteInstance(command_id=command_id, instance_id=random.choice([*state.instances]))
        if draw < 0.1:
            instance_id = random.choice([*state.instances])
            return cmd.RetryInstance(command_id=command_id, instance_id=instance_id, by="a user")
        if draw < 0.2 and state.tasks:
            return cmd.CancelTasks(
                command_id=command_id, task_ids=[random.choice([*state.tasks])], reason="the client has gone"
            )
        sampling = cmd.SamplingRequest(max_tokens=64, temperature=0.7, top_p=0.9)
        return cmd.CreateTasks(
            command_id=command_id,
            request_id=f"req-{self._numbers}",
            model_id=SMALL.model_id,
            instance_id="",
            kind="chat",
            count=random.choice((1, 1, 3)),
            sampling=sampling,
            api_node=node.node_id,
        )
