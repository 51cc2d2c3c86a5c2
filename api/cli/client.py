"""A client of the HTTP API for commands: JSON in and out, and server-sent events as they come."""

from __future__ import annotations

import http.client
import json
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import quote, urlencode

from actors.settings import Settings
from api.cli.errors import CliError

PATIENCE_S = 10.0
"""Seconds to wait for a connection, and for the answer to a request that needs no computing."""

ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Where a node that listens on all addresses is reached from its own machine."""


class ServerRefused(CliError):
    """The node answered with an error; the message is its own sentence."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One server-sent event; ``data`` is its decoded JSON, or the text itself where it isn't JSON."""

    name: str
    data: Any


class Client:
    """Talks to one node. Each request has a connection of its own."""

    def __init__(self, settings: Settings, *, patience: float = PATIENCE_S) -> None:
        self._patience = patience
        self._host = ANY_ADDRESS.get(settings.host, settings.host)
        self._port = settings.api_port

    @property
    def url(self) -> str:
        """Where the node's API is, such as ``http://127.0.0.1:52415``."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    def get(self, path: str, **query: object) -> Any:
        """The JSON answer to a GET. Raises `CliError` where no node answers, `ServerRefused`."""
        return self._json("GET", _with_query(path, query), None, self._patience)

    def post(self, path: str, body: object, *, timeout: float | None = None) -> Any:
        """The JSON answer to a POST; waits for as long as the node works on it unless given a time-out."""
        return self._json("POST", path, body, timeout)

    def delete(self, path: str) -> Any:
        """The JSON answer to a DELETE."""
        return self._json("DELETE", path, None, None)

    def events(
        self, method: str, path: str, body: object = None, **query: object
    ) -> Generator[ServerEvent, None, None]:
        """The server-sent events of a request, until the stream ends or the generator is closed.

        Closing it closes the connection, which tells the node that nobody reads on. Raises like `get`.
        """
        connection = self._connection(None)
        try:
            response = self._request(connection, method, _with_query(path, query), body, "text/event-stream")
            yield from _parse(response)
        except (OSError, http.client.HTTPException) as error:
            raise CliError(f"The connection to {self.url} broke in mid-stream: {error}.") from error
        finally:
            connection.close()

    def _json(self, method: str, path: str, body: object, timeout: float | None) -> Any:
        connection = self._connection(timeout)
        try:
            text = self._request(connection, method, path, body).read()
        except TimeoutError as error:
            raise CliError(f"The node at {self.url} did not answer within {timeout:g} s.") from error
        except (OSError, http.client.HTTPException) as error:
            raise CliError(f"The connection to {self.url} broke: {error}.") from error
        finally:
            connection.close()
        try:
            return json.loads(text) if text else None
        except ValueError as error:
            raise CliError(f"What answers at {self.url} is no Cuebook node: it sent no JSON.") from error

    def _connection(self, timeout: float | None) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=self._patience)
        try:
            connection.connect()
        except OSError as error:
            raise CliError(
                f"No node answers at {self.url} ({error.strerror or error}). Start one with `cuebook serve`, "
                "or say where it is with --host and --port."
            ) from error
        connection.sock.settimeout(timeout)
        return connection

    def _request(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: object,
        accept: str = "application/json",
    ) -> http.client.HTTPResponse:
        payload = None if body is None else json.dumps(body)
        headers = {"Accept": accept}
        if payload is not None:
            headers["Content-Type"] = "application/json"
        connection.request(method, path, payload, headers)
        response = connection.getresponse()
        if response.status >= 400:
            raise _refusal(response.status, response.reason, response.read())
        return response


def segment(text: str) -> str:
    """A text as one segment of a path: a model id's slash is escaped."""
    return quote(text, safe="")


def _with_query(path: str, query: dict[str, object]) -> str:
    given = {name: value for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path


def _refusal(status: int, reason: str, body: bytes) -> ServerRefused:
    """The server's own sentence, out of ``{"error": {"message", "code"}}``."""
    try:
        error = cast(dict[str, Any], json.loads(body)["error"])
        return ServerRefused(status, str(error.get("code") or ""), str(error["message"]))
    except (ValueError, KeyError, TypeError, AttributeError):
        text = body.decode(errors="replace").strip() or reason
        return ServerRefused(status, "", f"The node answered {status}: {text}")


def _parse(response: http.client.HTTPResponse) -> Generator[ServerEvent, None, None]:
    """Events by the rules of the HTML standard, section 9.2.6, as far as a node uses them."""
    name, data = "message", list[str]()
    for raw in response:
        line = raw.decode().rstrip("\r\n")
        if not line:
            if data:
                yield ServerEvent(name, _decode("\n".join(data)))
            name, data = "message", []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            name = value
        elif field == "data":
            data.append(value)


def _decode(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
