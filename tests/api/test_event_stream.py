"""One event stream alone, on an event loop whose time passes by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from api.errors import errors_as_json
from api.sse import KEEP_ALIVE_S, EventStream


class Skipping(asyncio.SelectorEventLoop):
    """Goes ahead to the next timer instead of waiting for it."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._select, self._selector.select = self._selector.select, self._skip

    def time(self) -> float:
        return self._now

    def _skip(self, timeout: float | None = None) -> Any:
        self._now += timeout or 0.0
        return self._select(0)


def asked(write: Callable[[bytes], Awaitable[None]], *, gone: bool = False) -> web.Request:
    """A request whose answer goes to ``write``."""
    writer = Mock(write=write, write_headers=AsyncMock())
    transport = Mock()
    transport.is_closing.return_value = gone
    return make_mocked_request("GET", "/events", writer=writer, transport=transport)


def test_a_comment_comes_after_as_much_silence_as_was_said() -> None:
    written: list[tuple[float, bytes]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()

        async def write(data: bytes) -> None:
            written.append((loop.time(), data))

        async with EventStream(asked(write), patient=True) as stream:
            await asyncio.sleep(1)
            await stream.send(b"data: 1\n\n")
            await asyncio.sleep(2 * KEEP_ALIVE_S + 1)
            await stream.send(b"data: 2\n\n")

    with asyncio.Runner(loop_factory=Skipping) as runner:
        runner.run(main())
    times = [1, 1 + KEEP_ALIVE_S, 1 + 2 * KEEP_ALIVE_S, 2 + 2 * KEEP_ALIVE_S]
    assert [at for at, _ in written] == pytest.approx(times)
    assert [data[:1] for _, data in written] == [b"d", b":", b":", b"d"]


def test_a_client_that_is_gone_is_no_fault(caplog: pytest.LogCaptureFixture) -> None:
    async def follow(request: web.Request) -> web.StreamResponse:
        async with EventStream(request, patient=True) as stream:
            await stream.send(b"data: 1\n\n")
            pytest.fail("nothing can be sent")
        return stream.response

    async def main() -> web.StreamResponse:
        return await errors_as_json(asked(AsyncMock(), gone=True), follow)

    assert asyncio.run(main()).status == 200
    assert not caplog.records
