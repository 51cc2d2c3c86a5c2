"""Machines on a switch, made of network namespaces: real kernels' networking, nothing but this test's."""

from __future__ import annotations

import ipaddress
import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

_numbers = itertools.count(1)
_cables = itertools.count()
_CABLE_NET = int(ipaddress.ip_address("198.18.0.0"))
_CABLES = 2**15


def ip(*arguments: str) -> None:
    run("ip", *arguments)


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


class Switch:
    """A bridge in a namespace of its own, with hosts plugged in."""

    def __init__(self, prefix: str) -> None:
        self.name = f"{prefix}s"
        self._prefix = prefix
        self.hosts: list[str] = []
        ip("netns", "add", self.name)
        self._in("ip", "link", "add", "br0", "type", "bridge", "mcast_snooping", "0", "stp_state", "0")
        self._in("ip", "link", "set", "br0", "up")

    def host(self, *, plugged: bool = True, ipv4: bool = True) -> str:
        """A new machine; returns its namespace. Its address is 10.77.0.N."""
        number = len(self.hosts) + 1
        name = f"{self._prefix}h{number}"
        ip("netns", "add", name)
        self.hosts.append(name)
        run("ip", "-n", name, "link", "set", "lo", "up")
        if plugged:
            self.plug(number, ipv4=ipv4)
        return name

    def plug(self, number: int, *, ipv4: bool = True) -> None:
        name, port = self.hosts[number - 1], f"p{number}"
        self._in("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
        self._in("ip", "link", "set", port, "master", "br0", "up")
        run("ip", "netns", "exec", name, "sysctl", "-qw", "net.ipv6.conf.eth0.accept_dad=0")
        if ipv4:
            run("ip", "-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", "eth0")
        run("ip", "-n", name, "link", "set", "eth0", "up")

    def reach(self, number: int) -> str:
        """A cable from the tests straight to a machine, beside the switch; returns its address on it.

        Each has a network of its own among those that RFC 2544 sets aside for tests, so that other tests may
        run at the same time.
        """
        name, here = self.hosts[number - 1], f"{self._prefix}m{number}"
        cable = (37 * os.getpid() + next(_cables)) % _CABLES
        ours, theirs = (ipaddress.ip_address(_CABLE_NET + 4 * cable + end) for end in (1, 2))
        run("ip", "link", "add", here, "type", "veth", "peer", "name", "mgmt", "netns", name)
        run("ip", "addr", "add", f"{ours}/30", "dev", here)
        run("ip", "link", "set", here, "up")
        run("ip", "-n", name, "addr", "add", f"{theirs}/30", "dev", "mgmt")
        run("ip", "-n", name, "link", "set", "mgmt", "up")
        return str(theirs)

    def divide(self, *numbers: int) -> None:
        """Move these machines to a switch of their own."""
        self._in("ip", "link", "add", "br1", "type", "bridge", "mcast_snooping", "0", "stp_state", "0")
        self._in("ip", "link", "set", "br1", "up")
        for number in numbers:
            self._in("ip", "link", "set", f"p{number}", "master", "br1")

    def join(self, *numbers: int) -> None:
        """Move these machines back to the one switch."""
        for number in numbers:
            self._in("ip", "link", "set", f"p{number}", "master", "br0")
        self._in("ip", "link", "del", "br1")

    def cut(self, number: int) -> None:
        """The switch port passes nothing; the carrier stays, as with a dead switch further away."""
        self._in("bridge", "link", "set", "dev", f"p{number}", "state", "0")

    def heal(self, number: int) -> None:
        self._in("bridge", "link", "set", "dev", f"p{number}", "state", "3")

    def close(self) -> None:
        for name in (*self.hosts, self.name):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)

    def _in(self, *command: str) -> None:
        run("ip", "netns", "exec", self.name, *command)


@contextmanager
def switch() -> Iterator[Switch]:
    """Skips the test where namespaces can't be made."""
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("bridge"):
        pytest.skip("network namespaces need root and iproute2; this test makes machines of them")
    try:
        made = Switch(f"cb{os.getpid()}x{next(_numbers)}")
    except OSError as error:
        pytest.skip(f"this machine makes no network namespaces with a bridge: {error}")
    try:
        yield made
    finally:
        made.close()
