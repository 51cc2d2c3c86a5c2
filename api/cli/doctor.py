"""Check this machine and this installation.

Each line says ok, warn (it works, but worse than it could) or fail (it will not work), and what to do.
The exit code is 1 where anything fails, else 0. Nothing is changed; a running node is not disturbed.

With --network it says instead why the nodes of a cluster do or don't see each other. Run it where one of them
runs, with the same settings; it listens and greets them for some seconds.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator

from actors.settings import Settings
from api.cli.checks import cluster, engine, home, log, models, network, port, sqlite, system
from api.cli.checks.finding import Finding, Level
from api.cli.console import console, print_json
from api.cli.setting_flags import add_setting_flags, settings_of

_STYLES: dict[Level, str] = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def add_arguments(parser: ArgumentParser) -> None:
    """`--network`, `--json`, and every setting: the doctor checks what a node with them would meet."""
    parser.add_argument("--network", action="store_true", help="check the way to the cluster's other nodes")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON, for programs")
    add_setting_flags(parser)


def run(args: Namespace) -> int:
    """Print every finding as it is made."""
    settings = settings_of(args)
    findings: list[Finding] = []
    for finding in network.check(settings) if args.network else _check(settings):
        findings.append(finding)
        if not args.json:
            _show(finding)
    if args.json:
        print_json(findings)
    return 1 if any(finding.level == "fail" for finding in findings) else 0


def _check(settings: Settings) -> Iterator[Finding]:
    yield from system.check()
    yield from home.check(settings)
    yield from sqlite.check(settings)
    yield from log.check(settings)
    yield from models.check(settings)
    yield from port.check(settings)
    yield from cluster.check(settings)
    yield from engine.check(settings)


def _show(finding: Finding) -> None:
    out = console()
    out.print(f"{finding.level:<5}", style=_STYLES[finding.level], end="")
    out.print(f"{finding.subject:<11}{finding.text}", soft_wrap=True)
    if finding.advice:
        out.print(f"{'':16}{finding.advice}", soft_wrap=True, style="italic")
