"""Waits for an instance with a progress bar: download, load, warm-up."""

from __future__ import annotations

import sys
from typing import Any

from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from api.cli.client import Client
from api.cli.console import console
from api.cli.errors import CliError

_WAIT_S = 86_400
"""Seconds after which the node ends the wait; the deadlines of each phase come long before."""

_PHASES = {
    "waiting": "waiting to be placed",
    "downloading": "fetching the model's files",
    "Spawning": "starting the runner",
    "Idle": "the runner is up",
    "Loading": "loading layers",
    "Loaded": "layers are loaded",
    "WarmingUp": "warming up",
    "Ready": "ready",
    "ready": "ready",
    "Failed": "the runner failed",
}


def wait_ready(client: Client, instance_id: str) -> None:
    """Wait until an instance is ready. Raises `CliError` with the reason where it will not be."""
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description:<28}"),
        BarColumn(),
        TextColumn("{task.fields[amount]}"),
        TimeElapsedColumn(),
        console=console(sys.stderr),  # standard output is for results
    ) as bar:
        shown = bar.add_task("placing", total=None, amount="")
        events = client.events("GET", "/instance/await", instance_id=instance_id, timeout=_WAIT_S)
        for event in events:
            if event.name == "progress":
                _show(bar, shown, event.data)
            elif event.name == "ready":
                bar.update(shown, description="ready", total=1, completed=1, amount="")
                return
            elif event.name == "error":
                raise CliError(event.data["error"]["message"])
    raise CliError("The node ended the wait without a word; `cuebook status` shows how things stand.")


def _show(bar: Progress, shown: TaskID, progress: dict[str, Any]) -> None:
    """One step of the progress: phases with an amount fill the bar, the others let it run."""
    phase, done, total = progress["phase"], progress["done"], progress["total"]
    amount = ""
    if total:
        amount = f"{done} of {total}" if phase == "Loading" else f"{done / 1e6:.0f} of {total / 1e6:.0f} MB"
    cause = progress["cause"]
    if cause is not None and phase in ("waiting", "Failed"):
        bar.console.print(cause["message"], style="yellow", soft_wrap=True)
    bar.update(
        shown, description=_PHASES.get(phase, phase), total=total or None, completed=done, amount=amount
    )
