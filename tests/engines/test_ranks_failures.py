"""Groups that break: ranks killed and stopped, strangers, wrong layers. Nobody hangs, and all say why."""

import contextlib
import json
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.rank_group import RankGroup, failed, layers_of, reached
from support.runner_client import GREEDY, RunnerClient
from support.tiny import tiny_model_dir

from engines.contract import GroupSpec, Strategy
from engines.runner import FAILED, ORPHANED
from engines.wire import Connect, Stop, WarmUp
from events import status
from events.values import Sampling

LAYERS = 5
ENDLESS = Sampling(max_tokens=900, temperature=0.0, top_p=1.0, seed=0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_dir(tmp_path_factory.mktemp("llama"), layers=LAYERS, endless=True)


@pytest.fixture
def trio() -> Iterator[RankGroup]:
    with RankGroup(3) as group:
        yield group


@pytest.fixture
def pair() -> Iterator[RankGroup]:
    with RankGroup(2) as group:
        yield group


def stream(group: RankGroup) -> None:
    group.lead.chat("stream", "stand by", ENDLESS)
    group.lead.wait(lambda: group.lead.tasks["stream"].steps > 3)


@pytest.mark.parametrize("busy", [True, False], ids=["busy", "idle"])
@pytest.mark.parametrize("killed", [0, 1, 2])
def test_ranks_end_when_one_is_killed(trio: RankGroup, model: Path, killed: int, busy: bool) -> None:
    trio.ready(model, "pipeline")
    if busy:
        stream(trio)
    trio.ranks[killed].process.send_signal(signal.SIGKILL)
    causes = [failed(rank).cause for n, rank in enumerate(trio.ranks) if n != killed]
    assert {cause.code for cause in causes} == {"ring_broken"}
    assert any(cause.detail == {"lost_rank": killed} for cause in causes)
    assert [r.process.wait(20) for n, r in enumerate(trio.ranks) if n != killed] == [FAILED, FAILED]


def test_tensor_ranks_end_when_one_is_killed(pair: RankGroup, model: Path) -> None:
    pair.ready(model, "tensor")
    stream(pair)
    pair.ranks[1].process.kill()
    assert failed(pair.lead).cause.code == "ring_broken"


def test_a_lost_supervisor_ends_a_rank_inside_a_collective(pair: RankGroup, model: Path) -> None:
    pair.ready(model, "pipeline")
    stream(pair)
    pair.ranks[1].process.send_signal(signal.SIGSTOP)
    time.sleep(0.3)
    steps = pair.lead.tasks["stream"].steps
    time.sleep(0.3)
    assert pair.lead.tasks["stream"].steps == steps  # it waits for the stopped rank
    pair.lead.channel.close()
    assert pair.lead.process.wait(20) == ORPHANED
    pair.ranks[1].process.send_signal(signal.SIGCONT)
    assert failed(pair.ranks[1]).cause.code == "ring_broken"


def test_a_rank_is_stopped_inside_a_collective(pair: RankGroup, model: Path) -> None:
    pair.ready(model, "tensor")
    stream(pair)
    pair.ranks[1].process.send_signal(signal.SIGSTOP)
    time.sleep(0.3)
    pair.lead.channel.send(Stop())
    assert pair.lead.process.wait(20) == 0
    assert isinstance(pair.lead.statuses[-1], status.Shutdown)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)], ids=str)
@pytest.mark.parametrize("busy", [True, False], ids=["busy", "idle"])
def test_a_group_is_stopped_rank_by_rank(
    trio: RankGroup, model: Path, order: tuple[int, ...], busy: bool
) -> None:
    trio.ready(model, "pipeline")
    if busy:
        stream(trio)
    for rank in order:
        trio.ranks[rank].channel.send(Stop())
        time.sleep(0.1)
    assert [rank.process.wait(20) for rank in trio.ranks] == [0, 0, 0]
    assert all(isinstance(rank.statuses[-1], status.Shutdown) for rank in trio.ranks)


def test_a_rank_that_is_stopped_alone_ends_the_group(pair: RankGroup, model: Path) -> None:
    pair.ready(model, "pipeline")
    assert pair.ranks[1].stop() == 0
    assert failed(pair.lead).cause.code == "ring_broken"


def test_missing_ranks_are_named(trio: RankGroup) -> None:
    specs = trio.specs("pipeline", timeout_s=1.5)
    for rank in (0, 1):
        trio.ranks[rank].channel.send(Connect(engine="mlx", group=specs[rank]))
    found = failed(trio.lead)
    assert (found.phase, found.cause.code) == ("Connecting", "ring_unreachable")
    assert f"2 ({specs[0].hosts[2]})" in found.cause.message
    assert specs[0].hosts[1] not in found.cause.message.split("ranks did not come")[1]
    assert failed(trio.ranks[1]).phase == "Connecting"


def test_a_rank_that_reaches_nobody_says_so(pair: RankGroup) -> None:
    spec = pair.specs("pipeline", timeout_s=1.0)[1]
    pair.ranks[1].channel.send(Connect(engine="mlx", group=spec))
    found = failed(pair.ranks[1])
    assert found.cause.code == "ring_unreachable"
    assert spec.hosts[0] in found.cause.message


def test_strangers_are_turned_away(pair: RankGroup, model: Path) -> None:
    specs = pair.specs("pipeline")
    pair.lead.channel.send(Connect(engine="mlx", group=specs[0]))
    reached(pair.lead, status.Connecting)
    ip, port = specs[0].hosts[0].split(":")
    for greeting in (b"GET / HTTP/1.1\r\n\r\n", b"", b"\x00\x00\x00\x01\xc1"):
        with _connected(ip, int(port)) as stranger:
            stranger.sendall(greeting)
            stranger.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionResetError):
                assert stranger.recv(1) == b""
    pair.ranks[1].channel.send(Connect(engine="mlx", group=specs[1]))
    reached(pair.lead, status.Connected)


def _connected(ip: str, port: int) -> socket.socket:
    deadline = time.monotonic() + 10
    while True:
        try:
            return socket.create_connection((ip, port), timeout=10)
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_another_group_s_rank_is_turned_away(pair: RankGroup) -> None:
    mine = pair.specs("pipeline", timeout_s=2.0)[0]
    other = pair.specs("pipeline", timeout_s=2.0, group_id="g2")[1]
    for rank, spec in zip(pair.ranks, (mine, other), strict=True):
        rank.channel.send(Connect(engine="mlx", group=spec))
    assert failed(pair.lead).cause.code == "ring_unreachable"
    assert failed(pair.ranks[1]).cause.code in ("ring_broken", "ring_unreachable")


@pytest.mark.parametrize("taken", [0, 1])
def test_a_port_that_is_taken_fails_the_connect(pair: RankGroup, taken: int) -> None:
    specs = pair.specs("pipeline", timeout_s=5.0)
    with socket.socket() as other:
        other.bind(("127.0.0.1", int(specs[0].hosts[taken].split(":")[1])))
        other.listen()
        for rank, spec in zip(pair.ranks, specs, strict=True):
            rank.channel.send(Connect(engine="mlx", group=spec))
        assert failed(pair.ranks[taken], timeout=20).cause.code == "ring_unreachable"
        assert failed(pair.ranks[1 - taken], timeout=20).phase == "Connecting"


def test_a_rank_that_can_t_load_ends_the_group(pair: RankGroup, model: Path, tmp_path: Path) -> None:
    pair.connect("pipeline")
    broken = tiny_model_dir(tmp_path / "broken", layers=LAYERS)
    shards = layers_of("pipeline", LAYERS, 2)
    RankGroup.load(_only(pair, 0), model, "pipeline", shards[:1])
    reached(pair.lead, status.Loaded)
    RankGroup.load(_only(pair, 1), broken, "pipeline", [(3, LAYERS + 1)])
    assert failed(pair.ranks[1]).cause.code == "wrong_layers"
    assert failed(pair.lead).cause.code == "ring_broken"


def _only(group: RankGroup, rank: int) -> RankGroup:
    """A view of a group with one rank."""
    view = object.__new__(RankGroup)
    view.ranks = [group.ranks[rank]]
    return view


def test_layers_that_do_not_make_up_the_model_are_refused(pair: RankGroup, model: Path) -> None:
    pair.connect("pipeline")
    pair.load(model, "pipeline", [(0, 3), (2, 5)])
    for rank in pair.ranks[::-1]:
        reached(rank, status.Loaded)
        rank.channel.send(WarmUp())
    found = failed(pair.lead)
    assert (found.phase, found.cause.code) == ("WarmingUp", "wrong_layers")
    assert "(0, 3), (2, 5)" in found.cause.message
    assert failed(pair.ranks[1]).cause.code == "ring_broken"


@pytest.mark.parametrize(
    ("strategy", "world", "code"),
    [("tensor", 3, "tensor_indivisible"), ("pipeline", 2, "pipeline_unsupported")],
)
def test_what_can_t_be_split_is_refused_at_load(
    tmp_path: Path, strategy: Strategy, world: int, code: str
) -> None:
    model = tiny_model_dir(tmp_path / "model", layers=LAYERS)
    if strategy == "pipeline":
        config = json.loads((model / "config.json").read_text())
        kinds = ["sliding_attention", "full_attention"] * 2 + ["full_attention"]
        (model / "config.json").write_text(json.dumps(config | {"layer_types": kinds, "sliding_window": 8}))
    with RankGroup(world) as group:
        group.connect(strategy)
        group.load(model, strategy)
        for rank in group.ranks:
            assert failed(rank).cause.code in (code, "ring_broken")
        assert any(failed(rank).cause.code == code for rank in group.ranks)


def test_jaccl_is_refused_where_there_is_no_rdma(pair: RankGroup) -> None:
    spec: GroupSpec = pair.specs(
        "tensor", backend="jaccl", rdma_devices=[[None, "rdma_en2"], ["rdma_en2", None]]
    )[0]
    pair.lead.channel.send(Connect(engine="mlx", group=spec))
    found = failed(pair.lead)
    assert (found.phase, found.cause.code) == ("Connecting", "jaccl_unavailable")


def test_a_rank_alone_is_not_touched_by_groups(model: Path) -> None:
    with RunnerClient() as alone:
        alone.ready(model)
        alone.chat("t", "go", GREEDY)
        assert len(alone.outcome("t").tokens) == GREEDY.max_tokens
        assert alone.stop() == 0
