"""The downloader: this node's model files. It scans, describes, imports, removes and fetches.

Slow work runs on threads of its own, so that the mailbox stays open; results come back as messages.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from actors.actor import Actor
from actors.deferred import Deferred
from actors.refusal import Rejected
from actors.replica import Paths
from actors.reporter import Reporter, SayAgain
from actors.settings import Settings
from engines import catalogue
from engines.fetch import fetch
from engines.model_errors import FetchCancelled, FetchError, ModelError
from engines.resolve import Described, describe
from engines.store import ModelStore, StoredModel
from events import commands as cmd
from events.ids import fresh
from events.values import Cause, ModelCard, ModelSource
from projections.snapshot import load_state
from projections.state import Model

PROGRESS_EVERY_S = 0.5
"""Seconds between two reports of a fetch's progress; the log keeps only what moved enough."""

logger = logging.getLogger("cuebook.downloader")


class Fetch(NamedTuple):
    """Bring a model's files to this node; the outcome is reported."""

    model: Model


class Describe(NamedTuple):
    """Ask what a model id stands for, wherever it is; answered by `Described`, and reported."""

    model_id: str


class Import(NamedTuple):
    """Ask to take in a directory or GGUF file of this machine; answered by a `StoredModel`, and reported."""

    path: Path
    model_id: str


class Remove(NamedTuple):
    """Ask to delete a model's files from this node's writable directories."""

    model_id: str


class Rescan(NamedTuple):
    """Ask to look through all model directories; answered by what was found, differences are reported."""


class _Fetched(NamedTuple):
    """A fetch has ended: with the model's directory, or with an error."""

    model: Model
    path: Path | None
    error: FetchError | None


class Downloader(Actor):
    """One for each node."""

    def __init__(self, node_id: str, settings: Settings, paths: Paths, reporter: Reporter) -> None:
        super().__init__()
        self._node_id = node_id
        self._settings = settings
        self._paths = paths
        self._reporter = reporter
        self._store = ModelStore(
            read_only=settings.read_only_model_paths,
            writable=settings.writable_model_paths,
            default=settings.default_models_path,
        )
        self._fetching: set[str] = set()
        self._known: set[str] = set()
        self._looking = threading.Lock()
        """Held by a look through the directories: what it has found must not go before it is reported."""
        self._ended = threading.Event()

    def started(self) -> None:
        """Report what a fresh install knows, then look through the directories on a thread."""
        with self._paths.reader() as reader:
            state = load_state(reader, self._paths.snapshots)
        self._known = {model_id for model_id, model in state.models.items() if self._node_id in model.paths}
        for (node_id, model_id), download in state.downloads.items():
            if node_id == self._node_id and download.status == "running":
                self._report_download(model_id, 0, 0, _interrupted(model_id))
        self._say_all()

    def _say_all(self) -> None:
        for card, source in catalogue.entries().values():
            self._report_model(card, source, "", 0)
        self._in_thread(self._rescan)

    def stopping(self) -> None:
        """Running fetches stop at their next piece; what they have is resumed next time."""
        self._ended.set()

    def receive(self, message: Any) -> Any:
        """Handle the messages of this module."""
        match message:
            case Fetch():
                self._fetch(message.model)
            case _Fetched():
                self._fetched(message)
            case Describe():
                return self._in_thread(lambda: self._describe(message.model_id))
            case Import():
                return self._in_thread(lambda: self._import(message))
            case Remove() if message.model_id in self._fetching:
                text = f"{message.model_id} is being fetched: delete it when that has ended."
                raise Rejected(Cause(code="model_not_removable", message=text))
            case Remove():
                return self._in_thread(lambda: self._remove(message.model_id))
            case SayAgain():
                self._say_all()
            case Rescan():
                return self._in_thread(self._rescan)
            case _:
                raise TypeError(f"the downloader takes no {type(message).__name__}")
        return None

    # What is here

    def _rescan(self) -> list[StoredModel]:
        with self._looking:
            return self._look()

    def _look(self) -> list[StoredModel]:
        known = set(self._known)  # what comes while it looks is not gone because it was not there yet
        found = self._store.scan()
        for problem in self._store.problems:
            logger.warning("%s can't be used: %s", problem.path, problem.cause.message)
        for stored in found:
            self._report_stored(stored)
        ids = {stored.model_id for stored in found}
        for gone in sorted(known - ids):
            self._reporter.send(
                cmd.ReportModelGone(command_id=fresh("report"), origin=self._node_id, model_id=gone)
            )
        self._known -= known - ids
        return found

    def _import(self, message: Import) -> StoredModel:
        take_in = self._store.import_directory if message.path.is_dir() else self._store.import_gguf
        stored = take_in(message.path, message.model_id)
        self._report_stored(stored)
        return stored

    def _remove(self, model_id: str) -> None:
        with self._looking:
            self._store.remove(model_id)
            self._known.discard(model_id)
            self._reporter.send(
                cmd.ReportModelGone(command_id=fresh("report"), origin=self._node_id, model_id=model_id)
            )

    def _describe(self, model_id: str) -> Described:
        found = describe(model_id, store=self._store, offline=self._settings.offline)
        self._report_model(found.card, found.source, found.path, found.card.weight_bytes)
        return found

    # Fetching

    def _fetch(self, model: Model) -> None:
        if model.model_id in self._fetching:
            return
        self._fetching.add(model.model_id)
        self._report_download(model.model_id, 0, 0)
        self._spawn(lambda: self._run_fetch(model), f"fetch-{model.model_id}")

    def _run_fetch(self, model: Model) -> None:
        path, error = None, None
        progress = _Throttle(
            self.clock.monotonic, lambda done, total: self._report_download(model.model_id, done, total)
        )
        try:
            root = self._store.place_for(model.card.weight_bytes, model.model_id)
            path = fetch(
                model.source,
                model.card,
                root,
                progress=progress,
                cancelled=self._ended.is_set,
                offline=self._settings.offline,
            )
        except FetchCancelled:
            return  # the node is stopping
        except FetchError as caught:
            error = caught
        except ModelError as caught:
            error = FetchError(caught.cause, retryable=False)
        except Exception as caught:
            logger.exception("The fetch of %s failed", model.model_id)
            message = f"{model.model_id} could not be fetched: {type(caught).__name__}: {caught}"
            error = FetchError(Cause(code="fetch_failed", message=message), retryable=True)
        self.mailbox.put_system(_Fetched(model, path, error))

    def _fetched(self, message: _Fetched) -> None:
        model_id = message.model.model_id
        self._fetching.discard(model_id)
        if message.error is not None:
            self._report_download(model_id, 0, 0, message.error)
        elif message.path is not None:
            size = sum(file.stat().st_size for file in message.path.iterdir() if file.is_file())
            self._known.add(model_id)
            self._report_model(message.model.card, message.model.source, str(message.path), size)

    # Reports

    def _report_download(self, model_id: str, done: int, total: int, error: FetchError | None = None) -> None:
        self._reporter.send(
            cmd.ReportDownload(
                command_id=fresh("report"),
                origin=self._node_id,
                model_id=model_id,
                done_bytes=done,
                total_bytes=total,
                cause=error.cause if error else None,
                retryable=error.retryable if error else True,
                policy=self._settings.policy,
            )
        )

    def _report_stored(self, stored: StoredModel) -> None:
        self._known.add(stored.model_id)
        self._report_model(stored.card, stored.source, str(stored.path), stored.size_bytes)

    def _report_model(self, card: ModelCard, source: ModelSource, path: str, size: int) -> None:
        self._reporter.send(
            cmd.ReportModel(
                command_id=fresh("report"),
                origin=self._node_id,
                card=card,
                source=source,
                path=path,
                size_bytes=size,
            )
        )

    # Threads

    def _in_thread(self, work: Callable[[], Any]) -> Deferred[Any]:
        answer = Deferred[Any]()

        def run() -> None:
            try:
                answer.resolve(work())
            except ModelError as error:
                answer.fail(Rejected(error.cause))
            except Exception as error:
                logger.exception("Work on the model directories failed")
                answer.fail(error)

        self._spawn(run, "library")
        return answer

    def _spawn(self, run: Callable[[], None], name: str) -> None:
        threading.Thread(target=run, name=name, daemon=True).start()


def _interrupted(model_id: str) -> FetchError:
    message = f"The fetch of {model_id} was interrupted: the part of the node that did it was restarted."
    return FetchError(Cause(code="fetch_interrupted", message=message), retryable=True)


class _Throttle:
    """Passes on at most one progress call in `PROGRESS_EVERY_S` seconds, and the last one."""

    def __init__(self, monotonic: Callable[[], float], report: Callable[[int, int], None]) -> None:
        self._monotonic = monotonic
        self._report = report
        self._last = 0.0

    def __call__(self, done: int, total: int) -> None:
        now = self._monotonic()
        if now - self._last >= PROGRESS_EVERY_S or done == total:
            self._last = now
            self._report(done, total)
