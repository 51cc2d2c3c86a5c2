"""A helper process that answers each line of JSON on its stdin with one on its stdout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from engines.processes import python_environment


class LineProcess:
    """``python -m module *arguments``, with ``environment`` on top of this process's. It calls `serve`.

    It is its own session, as a runner is: Linux shares a busy machine by sessions, see autogroup in sched(7).
    """

    def __init__(self, module: str, *arguments: str, environment: Mapping[str, str] = {}) -> None:
        chosen = python_environment() | dict(environment)
        tests = str(Path(__file__).resolve().parents[1])
        chosen["PYTHONPATH"] = os.pathsep.join([tests, chosen.get("PYTHONPATH", "")])
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            env=chosen,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            start_new_session=True,
        )

    def __enter__(self) -> LineProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def ask(self, question: object) -> Any:
        """Its answer; raises where it has ended."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(question) + "\n")
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{self.process.args} ended with {self.process.wait()}")
        return json.loads(answer)


def serve(answer: Callable[[Any], object]) -> None:
    """Answer lines until stdin closes."""
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)
