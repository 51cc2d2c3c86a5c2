"""The addresses of this machine, looked up anew each time: interfaces come and go."""

from __future__ import annotations

import socket
from typing import NamedTuple, cast

import ifaddr


class Interface(NamedTuple):
    """One address of one interface. ``number`` is the kernel's number of the interface."""

    name: str
    number: int
    address: str
    family: socket.AddressFamily

    @property
    def loopback(self) -> bool:
        """Whether it leads nowhere but to this machine."""
        return self.address.startswith("127.") or self.address == "::1"


def interfaces() -> list[Interface]:
    """IPv4 addresses, and IPv6 link-local ones, of all interfaces that are up."""
    found: list[Interface] = []
    for adapter in ifaddr.get_adapters():
        for ip in adapter.ips:
            number = adapter.index or 0
            if ip.is_IPv4:
                found.append(Interface(adapter.name, number, cast(str, ip.ip), socket.AF_INET))
                continue
            address = ip.ip[0]
            if address.startswith("fe80") or address == "::1":
                found.append(Interface(adapter.name, number, address, socket.AF_INET6))
    return found


def with_scope(address: tuple[str, int] | tuple[str, int, int, int]) -> str:
    """The host of a socket address; a link-local one with its interface, as ``fe80::1%eth0``.

    With the interface's number where it has just gone.
    """
    host = address[0].removeprefix("::ffff:")
    if len(address) == 4 and address[3] and "%" not in host:
        try:
            return f"{host}%{socket.if_indextoname(address[3])}"
        except OSError:
            return f"{host}%{address[3]}"
    return host
