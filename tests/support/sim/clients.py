"""Clients: they ask the gateway of any node, commands again with the same id until they have an answer."""

from __future__ import annotations

from collections.abc import Callable

from support.cards import SMALL
from support.sim.checks import Checks
from support.sim.node import Machine, SimulatedNode
from support.sim.stand_ins import SimulatedApi
from support.sim.world import World

from actors.gateway import Gateway
from actors.refusal import MailboxFull, Rejected, Stopped
from engines.contract import Prompt
from events import commands as cmd
from events.base import Command
from events.record import Committed
from events.values import PlacementSettings
from projections.state import ClusterState

TRIES = 6
MAX_INSTANCES = 4
IMPATIENCE_S = 3.0
"""Until a client asks another node."""
LEAVES = 0.1
"""Of the clients, those that don't wait for the end of their answer."""

NotNow = (MailboxFull, Stopped, TimeoutError)


class Clients:
    """Commands and requests at random moments until `close`."""

    def __init__(self, world: World, machines: list[Machine], checks: Checks, every: float) -> None:
        self._world = world
        self._machines = machines
        self._checks = checks
        self._every = every
        self._numbers = 0
        self._closed = False
        self._streams: dict[str, SimulatedApi] = {}
        self.sent = self.answered = 0
        world.after(1.0, self._next)

    def close(self) -> None:
        """Send nothing new; what is under way goes on."""
        self._closed = True

    def open_streams(self) -> list[str]:
        """Requests whose answer has not ended though the API that serves it lives."""
        living = [machine.node.api for machine in self._machines if machine.node is not None]
        return [request for request, api in self._streams.items() if api in living]

    def _next(self) -> None:
        if not self._closed:
            self._send()
            self._world.after(self._world.random.expovariate(1 / self._every), self._next)

    def _send(self) -> None:
        open_nodes = self._open_nodes()
        if not open_nodes:
            return
        self.sent += 1
        self._numbers += 1
        node = self._world.random.choice(open_nodes)
        command = self._command(node.machine.copy.state)
        if command is not None:
            self._try(command, TRIES)
        elif node.api is not None:
            request = f"chat-{self._numbers}"
            self._streams[request] = node.api
            node.api.loop.create_task(self._chat(request, node, node.api.gateway))

    def _open_nodes(self) -> list[SimulatedNode]:
        nodes = (machine.node for machine in self._machines)
        return [node for node in nodes if node is not None and node.api is not None]

    # Commands

    def _try(self, command: Command, tries: int) -> None:
        """Ask a node. No answer, or none in time: ask another."""
        settled = False

        def settle(answered: bool) -> None:
            nonlocal settled
            if settled:
                return
            settled = True
            self.answered += answered
            if not answered and tries > 1:
                self._world.after(self._world.between(0.1, 1.0), self._try, command, tries - 1)

        open_nodes = self._open_nodes()
        if open_nodes:
            node = self._world.random.choice(open_nodes)
            assert node.api is not None
            node.api.loop.create_task(self._ask(node, node.api.gateway, command, settle))
        self._world.after(IMPATIENCE_S, settle, False)

    async def _ask(
        self, node: SimulatedNode, gateway: Gateway, command: Command, settle: Callable[[bool], None]
    ) -> None:
        try:
            answer: Committed = await gateway.ask(command)
        except Rejected:
            settle(True)
        except NotNow:
            settle(False)
        else:
            self._checks.acknowledge(node.node_id, answer)
            settle(True)

    def _command(self, state: ClusterState) -> Command | None:
        """One that makes sense in the state as a node knows it; None: ask for an answer instead."""
        command_id = f"cmd-{self._numbers}"
        random = self._world.random
        draw = random.random()
        ready = [i for i in state.instances.values() if i.status == "ready"]
        if len(state.instances) < 1 + draw * MAX_INSTANCES / 2 or (draw < 0.1 and not ready):
            return cmd.PlaceInstance(command_id=command_id, model_id=SMALL.model_id, settings=self._wish())
        if draw < 0.05 and len(state.instances) > 1:
            return cmd.DeleteInstance(command_id=command_id, instance_id=random.choice([*state.instances]))
        if draw < 0.1:
            instance_id = random.choice([*state.instances])
            return cmd.RetryInstance(command_id=command_id, instance_id=instance_id, by="a user")
        if draw < 0.2 and state.tasks:
            task_ids = [random.choice([*state.tasks])]
            return cmd.CancelTasks(command_id=command_id, task_ids=task_ids, reason="the client has gone")
        return None

    def _wish(self) -> PlacementSettings:
        """Often a group; sometimes on what only some machines have, so that no others can take over."""
        random = self._world.random
        only = random.choice(("", "", "cpu:1"))
        return PlacementSettings(context=512, batch=1, ranks=random.choice((0, 0, 2, 2)), device_id=only)

    # Answers

    async def _chat(self, request: str, node: SimulatedNode, gateway: Gateway) -> None:
        random = self._world.random
        count = random.choice((1, 1, 3))
        try:
            generation = await gateway.generate(
                model_id=SMALL.model_id,
                instance_id="",
                kind="chat",
                count=count,
                sampling=cmd.SamplingRequest(max_tokens=64, temperature=0.7, top_p=0.9),
                prompts=[Prompt(kind="completion", text="Once upon a time")] * count,
                command_id=f"cmd-{request}",
            )
        except Rejected:
            self.answered += 1
        except NotNow:
            pass
        else:
            self.answered += 1
            if random.random() < LEAVES:
                generation.close("the client has gone")
            else:
                async for _ in generation:
                    pass
        del self._streams[request]
