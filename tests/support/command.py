"""`cuebook` as a person runs it: a process with arguments, an environment, and text in and out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROGRAM = [sys.executable, "-m", "api.cli.main"]


def environment(**settings: object) -> dict[str, str]:
    """The environment of the tests without their own settings, and with these. The engine is MLX."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("CUEBOOK_")}
    return inherited | {
        f"CUEBOOK_{name.upper()}": str(value) for name, value in {"engines": "mlx", **settings}.items()
    }


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass(frozen=True)
class Cuebook:
    """Runs commands with a home, and a port where a node listens."""

    home: Path
    port: int = 1

    def __call__(self, *words: str, typed: str = "", timeout: float = 120, **settings: object) -> Outcome:
        done = subprocess.run(
            [*PROGRAM, *words],
            input=typed,
            env=environment(home=self.home, api_port=self.port, **settings),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return Outcome(done.returncode, done.stdout, done.stderr)
