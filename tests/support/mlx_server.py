"""`mlx_lm.server` as its users run it, as a reference."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from support.served import READY_S, eventually, free_port

from engines.processes import python_environment


class MlxServer:
    """Serves one model directory while the context lasts. Requests name the model ``default_model``.

    It is its own session, as a runner is, see `support.line_process`.
    """

    def __init__(self, model: Path, output: Path, environment: Mapping[str, str]) -> None:
        self.port = free_port()
        self._output = output
        command = [sys.executable, "-m", "mlx_lm", "server", "--model", str(model), "--port", str(self.port)]
        with output.open("wb") as file:
            self._process = subprocess.Popen(
                [*command, "--log-level", "WARNING"],
                env=python_environment() | dict(environment),
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

    def __enter__(self) -> MlxServer:
        eventually(self._answers, READY_S, self._output.read_text)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _answers(self) -> bool:
        assert self._process.poll() is None, self._output.read_text()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False
