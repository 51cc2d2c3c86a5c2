"""Clients of a cluster: streams that are followed to whatever end they take, and requests on threads."""

from __future__ import annotations

import json
import threading
from typing import Any

from support.served import ServedNode, eventually


def chat_body(model: str, max_tokens: int) -> dict[str, object]:
    return {
        "model": model,
        "messages": [{"role": "user", "content": "go"}],
        "max_tokens": max_tokens,
        "temperature": 0,
    }


class Stream(threading.Thread):
    """A streamed chat through a node. `outcome` says how it ended, once `join` returned."""

    def __init__(self, node: ServedNode, model: str, max_tokens: int) -> None:
        super().__init__(daemon=True)
        self._node = node
        self._body = chat_body(model, max_tokens)
        self.text = ""
        self.finish = ""
        self.errors: list[dict[str, Any]] = []
        self.after_end: list[str] = []
        """What came after the finish or the error, other than the end mark."""
        self.broken: Exception | None = None

    def run(self) -> None:
        try:
            for line in self._node.stream(self._body):
                if line != "[DONE]":
                    self._take(line)
        except Exception as error:
            self.broken = error

    def begun(self) -> Stream:
        """Start it and wait for its first text."""
        self.start()
        eventually(lambda: self.text or not self.is_alive(), 60)
        assert self.text, (self.errors, self.broken)
        return self

    @property
    def outcome(self) -> str:
        """``finished``, ``error`` (with one error object) or ``cut`` (the connection broke)."""
        assert not self.is_alive(), "the stream hangs"
        assert not self.after_end, self.after_end
        assert len(self.errors) <= 1, self.errors
        if self.errors:
            assert not self.finish
            return "error"
        return "finished" if self.finish else "cut"

    def _take(self, line: str) -> None:
        said = json.loads(line)
        if self.finish or self.errors:
            self.after_end.append(line)
        elif "error" in said:
            self.errors.append(said["error"])
        else:
            choice = said["choices"][0]
            self.text += choice["delta"].get("content") or ""
            self.finish = choice["finish_reason"] or ""


class Request(threading.Thread):
    """One request on a thread of its own; `answer` waits for it."""

    def __init__(self, node: ServedNode, method: str, path: str, body: object, **headers: str) -> None:
        super().__init__(daemon=True)
        self._node = node
        self._what = method, path, body
        self._headers = {name.replace("_", "-"): value for name, value in headers.items()}
        self._answer: tuple[int, dict[str, str], Any] | None = None
        self.start()

    def run(self) -> None:
        status, headers, text = self._node.raw(*self._what, headers=self._headers)
        self._answer = status, headers, json.loads(text)

    def answer(self, timeout: float = 120) -> tuple[int, dict[str, str], Any]:
        """Status, headers and body."""
        self.join(timeout)
        assert self._answer is not None, f"{self._what[:2]} got no answer"
        return self._answer
