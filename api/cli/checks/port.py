"""The port of the API: free, or who has it."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import psutil

from actors.settings import Settings
from api.cli.checks.finding import Finding
from api.cli.client import Client
from api.cli.errors import CliError

_PATIENCE_S = 2.0
"""Seconds that a node may take to say that it is one."""


def check(settings: Settings) -> Iterator[Finding]:
    """A finding on the address and port that the API would listen on."""
    where = f"port {settings.api_port} on {settings.host}"
    error = bind_error(settings.host, settings.api_port)
    if error is None:
        yield Finding("ok", "port", f"{where} is free")
    elif answers(settings):
        yield Finding("ok", "port", f"{where}: a Cuebook node answers ({owner(settings.api_port)})")
    else:
        yield Finding(
            "fail", "port", f"{where} can't be used: {error}; {owner(settings.api_port)}", free_it(settings)
        )


def bind_error(host: str, port: int) -> str | None:
    """Why a server could not listen there; None where it could."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            return error.strerror or str(error)
    return None


def owner(port: int) -> str:
    """Who listens on a port, as far as this user may know."""
    try:
        pids = [c.pid for c in psutil.net_connections("tcp") if _listens(c.status, c.laddr, port)]
    except (psutil.AccessDenied, OSError):
        return "this user may not see who has it"
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            return f"process {pid}, {psutil.Process(pid).name()}, has it"
    return "another process has it"


def _listens(status: str, address: Any, port: int) -> bool:
    return status == psutil.CONN_LISTEN and bool(address) and address.port == port


def answers(settings: Settings) -> bool:
    """True where a Cuebook node answers at the settings' address."""
    try:
        return "node_id" in Client(settings, patience=_PATIENCE_S).get("/healthz")
    except (CliError, TypeError):
        return False


def free_it(settings: Settings) -> str:
    """What to do about a port that is taken."""
    return f"End that process, or choose another port, such as --port {settings.api_port + 1}."
