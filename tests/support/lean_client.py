"""An HTTP client that costs next to nothing: `python -m support.lean_client`, asked over its stdin.

A benchmark's client competes with the server for the cores, so this one parses no JSON: it counts bytes, and
looks for the first text and the end. It takes {port, bodies}, opens a connection for each, sends all at once,
and answers {seconds, first, last, cpu}: the time from the first sending to the last end, those to each first
text, the last kilobyte of each answer, and its own CPU time.
"""

from __future__ import annotations

import re
import selectors
import socket
import time
from typing import Any

from support.line_process import serve

FIRST_TEXT = re.compile(rb'"content": ?"[^"]')
END = b"data: [DONE]"
ACCEPT_S = 0.005
"""Pause after each connection: `http.server`, which mlx_lm.server is made of, lets five wait for their
acceptance, and a sixth then waits a whole second for its next try."""


class Stream:
    """One request and what has come of it."""

    def __init__(self, port: int, body: str) -> None:
        self.began = self.first = 0.0
        self.tail = b""
        data = body.encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        self._request = f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        time.sleep(ACCEPT_S)

    def send(self) -> None:
        """Send the request; from now on the time counts."""
        self.began = time.perf_counter()
        self.sock.sendall(self._request)

    def receive(self) -> bool:
        """Take what has come. True at the end of the answer."""
        data = self.sock.recv(65536)
        self.tail = (self.tail + data)[-1024:] if len(data) < 1024 else data[-1024:]
        if not self.first and FIRST_TEXT.search(data):
            self.first = time.perf_counter() - self.began
        if END in self.tail:
            return True
        if not data:
            raise RuntimeError(f"the answer ended early: {self.tail!r}")
        return False


def run(order: dict[str, Any]) -> dict[str, object]:
    """Send the requests and wait for their ends."""
    streams = [Stream(order["port"], body) for body in order["bodies"]]
    cpu, began = time.process_time(), time.perf_counter()
    with selectors.DefaultSelector() as selector:
        for stream in streams:
            stream.send()
            selector.register(stream.sock, selectors.EVENT_READ, stream)
        while selector.get_map():
            for key, _ in selector.select():
                if key.data.receive():
                    selector.unregister(key.data.sock)
                    key.data.sock.close()
    return {
        "seconds": time.perf_counter() - began,
        "first": [stream.first for stream in streams],
        "last": [stream.tail.decode(errors="replace") for stream in streams],
        "cpu": time.process_time() - cpu,
    }


if __name__ == "__main__":
    serve(run)
