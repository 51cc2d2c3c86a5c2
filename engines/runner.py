"""The runner process: `python -m engines.runner --fd N`, where N is its end of the supervisor's socket.

The main thread loads the model and steps the engine; a reader thread takes messages, prepares prompts and
ends the process at once when the socket closes, whatever the main thread is in. Engines are imported
after the runner has said that it is idle.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import queue
import socket
import sys
import threading
import traceback

import psutil

from engines.contract import Builder, Follower, Group, GroupLost, LoadError, LoadSpec
from engines.os_process import die_with_parent, name_process
from engines.serving import Serving, StepFailed, broken
from engines.wire import (
    ApplyLayer,
    Cancel,
    Channel,
    ChannelClosed,
    Connect,
    DropStaging,
    Generate,
    LayerStaged,
    Load,
    StageLayer,
    StatusIs,
    Stop,
    ToRunner,
    WarmUp,
)
from events import status
from events.values import Cause

FAILED = 1
"""Exit code after a `Failed` status."""
ORPHANED = 3
"""Exit code where the supervisor's socket closed."""
_LEAVING_S = 1.0
"""Seconds in which `Stop` may follow the end of another rank: a group is stopped rank by rank."""
_STOPPING_S = 2.0
"""Seconds that a rank may take for its last step: a collective that another rank has left never returns."""


class _Stopped(BaseException):
    """The supervisor said `Stop` while the main thread was loading.

    Not an `Exception`: an engine takes those for a fault of the model's files.
    """


class Runner:
    """The state machine of one runner, from Idle to Shutdown or Failed."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._inbox: queue.SimpleQueue[Load | Connect | WarmUp | Stop] = queue.SimpleQueue()
        self._builder: Builder | None = None
        self.in_group = False
        self._group: Group | None = None
        self._serving: Serving | None = None
        self._follower: Follower | None = None
        self._status: status.RunnerStatus = status.Spawning()
        self._stopping = threading.Event()

    def run(self) -> int:
        """Serve until stopped; returns the exit code."""
        threading.Thread(target=self._read, name="reader", daemon=True).start()
        self._say(_idle())
        try:
            self._serve()
        except _Stopped:
            pass
        except ChannelClosed:
            return ORPHANED
        except GroupLost as error:
            if not self._stopping.wait(2 * _LEAVING_S):  # the link's thread, which knows the rank, goes first
                return self._fail(error.cause)
        except (LoadError, StepFailed) as error:
            return self._fail(error.cause)
        except Exception as error:
            traceback.print_exc()
            return self._fail(Cause(code="runner_error", message=f"{type(error).__name__}: {error}"))
        self._say(status.Shutdown())
        return 0

    def _serve(self) -> None:
        """Follow the supervisor up to Ready, then serve tasks, or rank 0, until `Stop`."""
        while self._serving is None and self._follower is None:
            message = self._inbox.get()
            if isinstance(message, Stop):
                return
            if isinstance(message, Load):
                self._load(message)
            elif isinstance(message, Connect):
                self._connect(message)
            else:
                self._warm_up()
        if self._serving is not None:
            self._serving.run()
        elif self._follower is not None:
            self._follower.follow()

    def _connect(self, message: Connect) -> None:
        from engines.registry import engine

        self._say(status.Connecting())
        self.in_group = True
        self._group = engine(message.engine).connect(message.group, self._lost)
        self._say(status.Connected())

    def _lost(self, cause: Cause) -> None:
        """Another rank is gone. Called on the link's thread: the main one may be waiting for that rank."""
        if not self._stopping.wait(_LEAVING_S):
            os._exit(self._fail(cause))

    def _load(self, message: Load) -> None:
        from engines.registry import engine

        self._say(status.Loading(layers=0, total=message.end_layer - message.start_layer))
        self._builder = engine(message.engine).builder(_spec(message), self._group)
        notes = self._builder.load(self._loading)
        self._say(status.Loaded(notes=notes))

    def _loading(self, layers: int, total: int) -> None:
        if self._stopping.is_set():
            raise _Stopped
        self._say(status.Loading(layers=layers, total=total))

    def _warm_up(self) -> None:
        self._say(status.WarmingUp())
        if self._builder is None:
            raise RuntimeError("told to warm up before a model was loaded")
        warm = self._builder.warm_up()
        if isinstance(warm, Follower):
            self._follower = warm
        else:
            self._serving = Serving(self._channel, warm)
        if self._stopping.is_set():  # last: a `Stop` that comes from here on finds what to end
            raise _Stopped
        self._say(status.Ready())

    def _say(self, new: status.RunnerStatus) -> None:
        self._status = new
        self._channel.send(StatusIs(status=new))

    def _fail(self, cause: Cause) -> int:
        self._say(status.Failed(phase=status.name(self._status), cause=cause))
        return FAILED

    def _read(self) -> None:
        """The reader's thread. Never returns: the end of the socket is the end of the process."""
        try:
            for message in self._channel.receive():
                self._route(message)
        except Exception:  # a broken frame or a bug: without a reader the runner can't be told anything
            traceback.print_exc()
            os._exit(FAILED)
        os._exit(0 if self._stopping.is_set() else ORPHANED)

    def _route(self, message: object) -> None:
        serving = self._serving
        if isinstance(message, Generate):
            if serving is None:
                self._channel.send(broken(message.task_id, self._not_serving()))
            else:
                serving.admit(message)
        elif isinstance(message, Cancel):
            if serving is not None:
                serving.cancel(message)
        elif isinstance(message, StageLayer | ApplyLayer | DropStaging):
            self._move(message)
        elif isinstance(message, Stop):
            self._stop(message)
        elif isinstance(message, Load | Connect | WarmUp):
            self._inbox.put(message)

    def _move(self, message: StageLayer | ApplyLayer | DropStaging) -> None:
        if self._serving is not None:
            self._serving.move(message)
        elif isinstance(message, StageLayer):
            id, layer = message.migration_id, message.moves.layer
            self._channel.send(LayerStaged(migration_id=id, layer=layer, cause=self._not_serving()))

    def _not_serving(self) -> Cause:
        if self._follower is not None:
            return Cause(code="not_rank_0", message="Of a group of ranks only rank 0 takes tasks.")
        return Cause(code="not_ready", message="The runner has no model ready yet.")

    def _stop(self, message: Stop) -> None:
        self._say(status.ShuttingDown())
        self._stopping.set()
        self._inbox.put(message)
        if self._serving is not None:
            self._serving.quit()
        if self._follower is not None:
            self._follower.stop()
        if self.in_group:
            leave = threading.Timer(_STOPPING_S, self._leave)
            leave.daemon = True
            leave.start()

    def _leave(self) -> None:
        self._say(status.Shutdown())
        os._exit(0)


def _idle() -> status.Idle:
    from engines.mlx import blas

    process = psutil.Process()
    used = blas.in_use()
    return status.Idle(
        pid=process.pid,
        started_at=process.create_time(),
        options=used if used != blas.REFERENCE else {},  # MLX may not be what computes; if so, `Loaded` tells
        port=_free_port(),
    )


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("", 0))
        return sock.getsockname()[1]


def _spec(message: Load) -> LoadSpec:
    return LoadSpec(
        card=message.card,
        path=message.path,
        dtype=message.dtype,
        context=message.context,
        batch=message.batch,
        start_layer=message.start_layer,
        end_layer=message.end_layer,
        prefill_chunk=message.prefill_chunk,
        device_id=message.device_id,
        experts=message.experts,
    )


def main() -> int:
    """Entry point of the process."""
    parser = argparse.ArgumentParser(prog="engines.runner")
    parser.add_argument("--fd", type=int, required=True, help="the runner's end of the socket pair")
    fd: int = parser.parse_args().fd
    os.dup2(2, 1)  # what a library prints belongs to the diagnosis, not to the terminal of the node
    faulthandler.enable()
    die_with_parent()
    name_process("cuebook-runner")
    runner = Runner(Channel(socket.socket(fileno=fd), ToRunner))
    code = runner.run()
    if runner.in_group:  # what an engine still waits for at the end of the process may never come
        sys.stderr.flush()
        os._exit(code)
    return code


if __name__ == "__main__":
    raise SystemExit(main())
