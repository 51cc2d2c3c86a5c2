"""Answers of runners on other nodes: their end waits for their last tokens, and a loss is never an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from support.cards import SMALL
from support.cluster import FINISHED, LIFE, NODE, POLICY, USAGE, node_started

from actors import gateway as gateways
from actors.actor import Actor, spawn
from actors.address import Address
from actors.decider import NAME, VERSION, decide
from actors.gateway import Gateway
from actors.generation import Generation
from actors.replica import Paths
from actors.settings import Settings
from actors.streams import PromptFor, PromptShelf, TokenHub
from actors.system import ActorSystem
from engines.contract import Prompt
from engines.wire import Chunk, Progress, TaskDone
from events import catalogue as ev
from events import commands as cmd
from events.base import Command
from events.commands import Facts, SamplingRequest
from events.drivers import STDLIB
from events.feed import CommitFeed
from events.log import EventLog
from events.record import Committed, Draft
from events.values import Cause, ModelSource, PlacementSettings
from projections.evolve import apply
from projections.state import ClusterState

AWAY = "node-b"
HERE = NODE
SAMPLING = SamplingRequest(max_tokens=8, temperature=0.0, top_p=1.0)


class Clerk(Actor):
    """Decides and commits at once, as the leading master and its journal do."""

    def __init__(self, log: EventLog, feed: CommitFeed) -> None:
        super().__init__()
        self._log = log
        self._feed = feed
        self.state = ClusterState()
        self.taken: list[Command] = []
        self.batch: list[Committed] | None = None
        """What is committed and not yet published, where that comes in one batch."""

    def receive(self, message: Command) -> Committed | None:
        self.taken.append(message)
        epoch = self.state.epoch + isinstance(message, cmd.StartEpoch)
        facts = Facts(now=self.clock.now(), seed=message.command_id, epoch=epoch, node_id=HERE)
        events = decide(self.state, message, facts)
        if not events:
            return None
        draft = Draft(command=message, facts=facts, decider=NAME, decider_version=VERSION, events=events)
        (committed,) = self._log.append([draft])
        for recorded in committed.events:
            apply(self.state, recorded.seq, recorded.epoch, recorded.at, recorded.event)
        if self.batch is not None:
            self.batch.append(committed)
        else:
            self._feed.publish([committed])
        return committed


class Stage:
    """A node whose API serves a model that runs on another node, or here."""

    def __init__(self, directory: Path, runs_on: str) -> None:
        self.log = EventLog.open(directory / "log.db")
        self.paths = Paths(directory / "log.db", directory / "snapshots", STDLIB)
        self.feed = CommitFeed(self.paths.log)
        self.clerk = Clerk(self.log, self.feed)
        self.master = spawn(self.clerk, "master", ActorSystem())
        self.hub, self.shelf = TokenHub(HERE), PromptShelf()
        self.shipped: list[tuple[str, PromptFor]] = []
        self.away = TokenHub(AWAY)
        self.away.connect(self._arrives_here)
        self.away.on_prompt(lambda prompt: self.shipped.append((AWAY, prompt)))
        self.hub.connect(self._arrives_there)
        addresses = self.master, Address("downloader")
        self.gateway = Gateway(
            HERE, "run-1", Settings(), self.paths, self.feed, *addresses, self.shelf, self.hub
        )
        self._commands = 0
        self._begin(runs_on)

    def _arrives_here(self, node_id: str, payload: bytes) -> bool:
        assert node_id == HERE
        self.hub.arrived(AWAY, payload)
        return True

    def _arrives_there(self, node_id: str, payload: bytes) -> bool:
        assert node_id == AWAY
        self.away.arrived(HERE, payload)
        return True

    def do(self, kind: type[Command], **fields: Any) -> Any:
        self._commands += 1
        return self.master.ask(kind(command_id=f"c{self._commands}", **fields), 20)

    def _begin(self, runs_on: str) -> None:
        self.do(cmd.StartEpoch, node_id=HERE, incarnation="run-1")
        for node_id in (HERE, AWAY):
            self.master.ask(node_started(node_id), 20)
        source = ModelSource(kind="hub", location="org/small")
        self.do(cmd.ReportModel, origin=HERE, card=SMALL, source=source, path="/m", size_bytes=1)
        wish = PlacementSettings(context=512, batch=1, node_id=runs_on)
        placed = self.do(cmd.PlaceInstance, model_id=SMALL.model_id, settings=wish)
        (rank,) = placed.events[1].event.placement.ranks
        for status in LIFE:
            self.do(cmd.ReportRunner, origin=runs_on, runner_id=rank.runner_id, status=status, policy=POLICY)

    async def ask(self) -> Generation:
        """A client asks; its task is routed as the worker of the runner's node does."""
        self._commands += 1
        generation = await self.gateway.generate(
            model_id=SMALL.model_id,
            instance_id="",
            kind="chat",
            count=1,
            sampling=SAMPLING,
            prompts=[Prompt(kind="chat", messages=[{"role": "user", "content": "go"}])],
            command_id=f"ask-{self._commands}",
        )
        await until(lambda: bool(generation.task_ids))
        self.away.route(generation.task_ids[0], HERE)
        return generation

    def says(self, generation: Generation, text: str) -> None:
        (task_id,) = generation.task_ids
        chunk = Chunk(task_id=task_id, text=text, tokens=[1])
        self.away.publish(Progress(chunks=[chunk], prefilling=[], decoding=[task_id]))

    def all_said(self, generation: Generation) -> None:
        (task_id,) = generation.task_ids
        done = TaskDone(task_id=task_id, finish_reason="stop", usage=USAGE, timings=FINISHED.timings)
        self.away.publish(done)

    def finished(self, generation: Generation) -> None:
        """The end is in the log."""
        self.do(cmd.ReportTask, origin=AWAY, task_id=generation.task_ids[0], outcome=FINISHED)

    def lost_at_once(self, *command_ids: str) -> list[Committed]:
        """The node of the runner is lost before anybody has heard of the tasks: what is to be published."""
        self.clerk.batch = []
        for command_id in command_ids:
            self.master.ask(create_tasks(command_id), 20)
        cause = Cause(code="node_lost", message="It is gone.")
        fields = {"node_id": AWAY, "incarnation": "run-1", "cause": cause, "policy": POLICY}
        self.do(cmd.ReportNodeLost, origin=HERE, **fields)
        return self.clerk.batch

    def close(self) -> None:
        self.clerk.stop()
        self.master.join(10)
        self.log.close()


def create_tasks(command_id: str) -> Command:
    return cmd.CreateTasks(
        command_id=command_id,
        request_id=f"request-{command_id}",
        model_id=SMALL.model_id,
        instance_id="",
        kind="chat",
        count=1,
        sampling=SAMPLING,
        api_node=HERE,
    )


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


async def settle() -> None:
    """Let everything that is under way arrive."""
    await asyncio.sleep(0.1)


async def items(generation: Generation) -> list[Any]:
    async with asyncio.timeout(60):
        return [item async for _, item in generation]


Script = Callable[[Stage], Coroutine[Any, Any, None]]


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., None]:
    def run(script: Script, runs_on: str = AWAY) -> None:
        async def whole() -> None:
            stage = await asyncio.to_thread(Stage, tmp_path, runs_on)
            await stage.gateway.open()
            try:
                await script(stage)
            finally:
                stage.gateway.close()
                await asyncio.to_thread(stage.close)

        asyncio.run(whole())

    return run


def test_the_prompt_goes_to_the_node_of_the_runner(play: Callable[[Script], None]) -> None:
    async def script(stage: Stage) -> None:
        generation = await stage.ask()
        ((node_id, prompt),) = stage.shipped
        assert (node_id, prompt.request_id, prompt.index) == (AWAY, generation.request_id, 0)
        assert len(stage.shelf) == 0

    play(script)


def test_who_asks_before_the_log_has_this_run_of_the_node_waits_for_it(
    play: Callable[[Script], None],
) -> None:
    async def script(stage: Stage) -> None:
        stage.gateway._incarnation = "run-2"
        asking = asyncio.create_task(stage.ask())
        await asyncio.sleep(0.05)
        assert not stage.gateway.started
        assert not asking.done()
        await asyncio.to_thread(stage.master.ask, node_started(HERE, "run-2"), 20)
        assert (await asking).task_ids
        assert stage.gateway.started

    play(script)


def test_an_end_in_the_log_waits_for_the_last_tokens(play: Callable[[Script], None]) -> None:
    async def script(stage: Stage) -> None:
        generation = await stage.ask()
        stage.says(generation, "half")
        await asyncio.to_thread(stage.finished, generation)
        await settle()
        assert not generation.over
        stage.says(generation, " and half")
        stage.all_said(generation)
        *chunks, end = await items(generation)
        assert [chunk.text for chunk in chunks] == ["half", " and half"]
        assert isinstance(end, ev.TaskFinished)

    play(script)


def test_where_all_is_said_the_end_in_the_log_is_the_end(play: Callable[[Script], None]) -> None:
    async def script(stage: Stage) -> None:
        generation = await stage.ask()
        stage.says(generation, "all")
        stage.all_said(generation)
        await settle()
        assert not generation.over, "a runner's word is no end"
        await asyncio.to_thread(stage.finished, generation)
        assert isinstance((await items(generation))[-1], ev.TaskFinished)

    play(script)


def test_a_complete_answer_whose_last_tokens_are_lost_is_a_failure(
    play: Callable[[Script], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateways, "LAST_TOKENS_S", 0.05)

    async def script(stage: Stage) -> None:
        generation = await stage.ask()
        stage.says(generation, "half")
        await asyncio.to_thread(stage.finished, generation)
        _, end = await items(generation)
        assert isinstance(end, ev.TaskFailed)
        assert (end.cause.code, end.usage) == ("tokens_lost", USAGE)

    play(script)


def test_a_failure_waits_for_nothing(play: Callable[[Script], None]) -> None:
    async def script(stage: Stage) -> None:
        generation = await stage.ask()
        lost = {
            "node_id": AWAY,
            "incarnation": "run-1",
            "cause": gateways.Cause(code="node_lost", message="?"),
        }
        await asyncio.to_thread(stage.do, cmd.ReportNodeLost, origin=HERE, policy=POLICY, **lost)
        (end,) = await items(generation)
        assert isinstance(end, ev.TaskFailed)
        assert end.cause.code == "node_lost"

    play(script)


def test_a_runner_here_has_said_all_when_the_log_has_its_end(play: Callable[..., None]) -> None:
    async def script(stage: Stage) -> None:
        generation = await stage.ask()
        await asyncio.to_thread(stage.finished, generation)
        (end,) = await items(generation)
        assert isinstance(end, ev.TaskFinished)
        assert stage.shipped == []

    play(script, HERE)


def test_a_text_with_a_hole_is_cancelled(play: Callable[[Script], None]) -> None:
    async def script(stage: Stage) -> None:
        generation = await stage.ask()
        stage.says(generation, "half")
        await settle()
        stage.hub.link_opened(AWAY)  # the stream link broke and came back: what was on it is gone
        stage.away.link_opened(HERE)
        await until(lambda: any(isinstance(command, cmd.CancelTasks) for command in stage.clerk.taken))
        (cancel,) = (command for command in stage.clerk.taken if isinstance(command, cmd.CancelTasks))
        assert cancel.task_ids == generation.task_ids
        assert cancel.reason == f"tokens were lost on the way from node {AWAY}"

    play(script)


def test_a_request_of_a_side_that_gave_way_ends_and_says_so(play: Callable[[Script], None]) -> None:
    async def script(stage: Stage) -> None:
        fork = stage.log.last_decision
        generation = await stage.ask()
        stage.says(generation, "half")
        await settle()
        stage.log.rewind(fork, "3/node-c/run-1", "it has more followers", [], at=1.0)
        stage.feed.rewound(fork, [])
        *_, end = await items(generation)
        assert isinstance(end, ev.TaskFailed)
        assert end.cause.code == "superseded"
        assert stage.gateway.state.tasks == {}

    play(script)


def test_who_follows_hears_of_a_rewind_to_a_shorter_log(play: Callable[[Script], None]) -> None:
    async def script(stage: Stage) -> None:
        fork = stage.log.last_decision
        await stage.ask()
        async with stage.gateway.tail() as more:
            waiting = asyncio.ensure_future(more(stage.gateway.state.seq))
            await settle()
            assert not waiting.done()
            stage.log.rewind(fork, "3/node-c/run-1", "it has more followers", [], at=1.0)
            stage.feed.rewound(fork, [])
            await asyncio.wait_for(waiting, 60)

    play(script)


@pytest.mark.parametrize("rewound", [False, True], ids=["in one batch", "and the state is ahead of it"])
def test_a_task_whose_runner_is_lost_at_once_ends(play: Callable[[Script], None], rewound: bool) -> None:
    async def script(stage: Stage) -> None:
        generation = Generation("request-ask", stage.gateway.cancel)
        stage.gateway._requests["request-ask"] = generation
        batch = await asyncio.to_thread(stage.lost_at_once, "ask")
        if rewound:
            stage.gateway._rewound()  # which loads the state at the log's head
        stage.feed.publish(batch)
        assert isinstance((await items(generation))[-1], ev.TaskFailed)
        assert not stage.gateway.broken.done()

    play(script)
