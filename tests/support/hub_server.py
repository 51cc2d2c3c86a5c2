"""A real HTTP server in the shape of the Hugging Face hub, with faults on request."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class HubServer:
    """Serves the directories in ``models`` by id, from a thread of its own. Use as a context manager."""

    models: dict[str, Path]
    refuse: tuple[int, str] | None = None
    """Status and X-Error-Code of every answer."""
    cut_after: int = 0
    """Break the connection after this many bytes of a file, once."""
    corrupt: str = ""
    """Name of a file that is sent with its first byte changed."""
    short: str = ""
    """Name of a file that is sent without its last byte."""
    ranges: list[tuple[str, int]] = field(default_factory=list)
    """(file, first byte) of every request for a file."""
    url: str = ""

    def __enter__(self) -> HubServer:
        started = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, args=(started,), daemon=True)
        self._thread.start()
        assert started.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        app = web.Application()
        app.router.add_get("/api/models/{id:.+?}/revision/{revision}", self._info)
        app.router.add_get("/api/models/{id:.+}", self._info)
        app.router.add_get("/{id:.+?}/resolve/{revision}/{file}", self._file)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        self._loop.run_until_complete(runner.setup())
        site = web.TCPSite(runner, "127.0.0.1", 0)
        self._loop.run_until_complete(site.start())
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        started.set()
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
        self._loop.close()

    def _refusal(self, model_id: str) -> web.Response | None:
        status, code = self.refuse or ((404, "RepoNotFound") if model_id not in self.models else (0, ""))
        return web.Response(status=status, headers={"X-Error-Code": code}) if status else None

    async def _info(self, request: web.Request) -> web.Response:
        model_id = request.match_info["id"]
        if refusal := self._refusal(model_id):
            return refusal
        if request.match_info.get("revision", COMMIT) not in (COMMIT, "main"):
            return web.Response(status=404, headers={"X-Error-Code": "RevisionNotFound"})
        siblings = [_sibling(path) for path in sorted(self.models[model_id].iterdir())]
        return web.json_response({"id": model_id, "sha": COMMIT, "siblings": siblings})

    async def _file(self, request: web.Request) -> web.StreamResponse:
        if refusal := self._refusal(request.match_info["id"]):
            return refusal
        name = request.match_info["file"]
        data = self._content(self.models[request.match_info["id"]] / name)
        start = request.http_range.start or 0
        self.ranges.append((name, start))
        response = web.StreamResponse(status=206 if start else 200)
        response.content_length = len(data) - start
        await response.prepare(request)
        if 0 < self.cut_after < len(data) - start:
            await response.write(data[start : start + self.cut_after])
            self.cut_after = 0
            assert request.transport is not None
            request.transport.close()
            return response
        await response.write(data[start:])
        return response

    def _content(self, path: Path) -> bytes:
        data = path.read_bytes()
        if path.name == self.corrupt:
            return bytes([data[0] ^ 1]) + data[1:]
        return data[:-1] if path.name == self.short else data


def _sibling(path: Path) -> dict[str, object]:
    data = path.read_bytes()
    blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    sibling: dict[str, object] = {"rfilename": path.name, "size": len(data), "blobId": blob}
    if path.suffix == ".safetensors":
        sibling["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
    return sibling
