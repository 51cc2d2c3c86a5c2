"""A node as users run it: `cuebook serve` in a process of its own, talked to over HTTP."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

READY_S = 120.0


_given: set[int] = set()


def free_port() -> int:
    """A free port below those that outgoing connections get, which could take it before it is used."""
    while True:
        port = random.randrange(12_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in _given:
            _given.add(port)
            return port


class ServedNode:
    """Starts on `start`; `kill` is kill -9, `stop` is Ctrl-C. Settings go in as environment variables.

    The engine is MLX where no other is named, whatever is installed.

    With a ``namespace`` it runs in that network namespace, with its API on ``address``.
    """

    def __init__(
        self, home: Path, *, namespace: str = "", address: str = "127.0.0.1", **settings: object
    ) -> None:
        self.home = home
        self.port = free_port()
        self.url = f"http://{address}:{self.port}"
        self._into = ["ip", "netns", "exec", namespace] if namespace else []
        self._address = address
        self._settings = {
            f"CUEBOOK_{name.upper()}": str(value) for name, value in {"engines": "mlx", **settings}.items()
        }
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> ServedNode:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> Path:
        return self.home / "log.db"

    @property
    def settings(self) -> dict[str, str]:
        """Those it was given, by their names."""
        return {name.removeprefix("CUEBOOK_").lower(): value for name, value in self._settings.items()}

    def set(self, **settings: object) -> None:
        """Settings in place of others, from the next start on."""
        self._settings |= {f"CUEBOOK_{name.upper()}": str(value) for name, value in settings.items()}

    def start(self, *, wait: bool = True) -> ServedNode:
        self.home.mkdir(parents=True, exist_ok=True)
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("CUEBOOK_")}
        with (self.home / "output.txt").open("ab") as output:
            self._process = subprocess.Popen(
                [
                    *self._into,
                    sys.executable,
                    "-m",
                    "api.cli.main",
                    "serve",
                    "--home",
                    str(self.home),
                    "--port",
                    str(self.port),
                    "--host",
                    self._address,
                ],
                env=inherited | self._settings,
                stdout=output,
                stderr=output,
            )
        if wait:
            eventually(lambda: self.alive() and self.status_of("/readyz") == 200, READY_S, self.output)
        return self

    def alive(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (
            f"the node ended with {self._process.returncode}:\n{self.output()}"
        )
        return True

    def output(self) -> str:
        return (self.home / "output.txt").read_text()[-4000:]

    def kill(self) -> None:
        """kill -9, and wait until the port is free."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        if self._process is None or self._process.poll() is not None:
            return 0
        self._process.send_signal(signal.SIGINT)
        try:
            return self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise AssertionError(f"the node did not stop on Ctrl-C:\n{self.output()}") from None

    # HTTP

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        timeout: float = 120,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, Any]:
        status, _, text = self.raw(method, path, body, timeout, headers)
        return status, json.loads(text) if text else None

    def raw(
        self,
        method: str,
        path: str,
        body: object = None,
        timeout: float = 120,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, dict[str, str], str]:
        data = None if body is None else json.dumps(body).encode()
        given = {"Content-Type": "application/json", **(headers or {})}
        request = urllib.request.Request(self.url + path, data, given, method=method)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return answer.status, dict(answer.headers), answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, dict(error.headers), error.read().decode()

    def status_of(self, path: str) -> int:
        try:
            return self.raw("GET", path, timeout=5)[0]
        except OSError:
            return 0

    def get(self, path: str) -> Any:
        status, body = self.request("GET", path)
        assert status == 200, (status, body)
        return body

    def place(self, model_id: str, **settings: object) -> str:
        status, body = self.request(
            "POST", "/instance", {"model_id": model_id, "placement_settings": settings}
        )
        assert status in (200, 201, 202), (status, body)
        return body["instance_id"]

    def ready(self, instance_id: str, timeout: float = 60) -> None:
        status, body = self.request("GET", f"/instance/await?instance_id={instance_id}&timeout={timeout:g}")
        assert status == 200, (status, body)

    def stream(self, body: dict[str, object], path: str = "/v1/chat/completions") -> Iterator[str]:
        """The `data:` lines of a streamed answer."""
        data = json.dumps({**body, "stream": True}).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as answer:
            for line in answer:
                if line.startswith(b"data: "):
                    yield line[6:].decode().strip()

    def events(self, *types: str) -> list[dict[str, Any]]:
        return self.get(f"/events?limit=1000&type={','.join(types)}")["events"]

    # Processes

    def runner_pids(self) -> list[int]:
        return [child.pid for child in psutil.Process(self.pid).children() if _is_runner(child)]


def _is_runner(process: psutil.Process) -> bool:
    try:
        return "engines.runner" in process.cmdline()
    except psutil.Error:
        return False


def eventually(
    condition: Callable[[], object], timeout: float = 60, explain: Callable[[], str] = lambda: ""
) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"it did not come true within {timeout:g} s: {explain()}"
        time.sleep(0.05)
