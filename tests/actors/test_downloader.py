"""The downloader's looks at the model directories beside what comes and goes meanwhile."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from support.tiny import tiny_model_dir

from actors.actor import Actor, spawn
from actors.downloader import Downloader, Fetch, Import, Remove, Rescan
from actors.refusal import Rejected
from actors.replica import Paths
from actors.reporter import Reporter
from actors.settings import Settings
from actors.system import ActorSystem
from engines.cards import card_from_directory
from engines.store import ModelStore, StoredModel
from events.commands import ReportModel, ReportModelGone
from events.drivers import STDLIB
from events.log import EventLog
from events.values import ModelSource
from projections.state import Model


class Master(Actor):
    """Takes every report, and keeps what they say of model files."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[tuple[str, str]] = []

    def receive(self, message: object) -> None:
        if isinstance(message, ReportModel) and message.path:
            self.said.append(("stored", message.card.model_id))
        elif isinstance(message, ReportModelGone):
            self.said.append(("gone", message.model_id))


class Looking:
    """A downloader in the middle of a look at its directories, which ends with `end`."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch, system: ActorSystem) -> None:
        self.master, self.home = Master(), home
        looked, self._go = threading.Event(), threading.Event()
        scan = ModelStore.scan

        def slow(store: ModelStore) -> list[StoredModel]:
            found = scan(store)
            looked.set()
            assert self._go.wait(20)
            return found

        monkeypatch.setattr(ModelStore, "scan", slow)
        EventLog.open(home / "log.db").close()
        paths = Paths(home / "log.db", home / "snapshots", STDLIB)
        settings = Settings(home=str(home), offline=True)
        self._reporter = Reporter(spawn(self.master, "master", system), system.clock)
        self.address = spawn(Downloader("node", settings, paths, self._reporter), "downloader", system)
        assert looked.wait(20)

    def end(self) -> None:
        self._go.set()
        self.address.ask(Rescan(), 20)
        deadline = time.monotonic() + 20
        while len(self._reporter):
            assert time.monotonic() < deadline
            time.sleep(0.001)


def test_a_model_that_comes_meanwhile_is_not_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: ActorSystem
) -> None:
    looking = Looking(tmp_path, monkeypatch, system)
    looking.address.ask(Import(tiny_model_dir(tmp_path / "elsewhere"), "some/model"), 20)
    looking.end()
    assert set(looking.master.said) == {("stored", "some/model")}


def test_what_is_being_fetched_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: ActorSystem
) -> None:
    fetching, go = threading.Event(), threading.Event()

    def fetch(*_: object, **__: object) -> Path:
        fetching.set()
        assert go.wait(20)
        return tiny_model_dir(tmp_path / "models" / "some" / "model")

    monkeypatch.setattr("actors.downloader.fetch", fetch)
    looking = Looking(tmp_path, monkeypatch, system)
    card = card_from_directory(tiny_model_dir(tmp_path / "elsewhere"), "some/model")
    model = Model(model_id="some/model", card=card, source=ModelSource(kind="hub", location="some/model"))
    looking.address.tell(Fetch(model))
    assert fetching.wait(20)
    with pytest.raises(Rejected, match="some/model is being fetched"):
        looking.address.ask(Remove("some/model"), 20)
    go.set()
    looking.end()


def test_a_model_that_goes_meanwhile_is_not_there_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: ActorSystem
) -> None:
    tiny_model_dir(tmp_path / "models" / "some" / "model")
    looking = Looking(tmp_path, monkeypatch, system)
    removed = looking.address.ask_future(Remove("some/model"))
    removed.wait(0.2)
    looking.end()
    removed.get(timeout=20)
    assert looking.master.said == [("stored", "some/model"), ("gone", "some/model")]
