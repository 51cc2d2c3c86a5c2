"""Commands that talk to a running node, against a real one with tiny models."""

from __future__ import annotations

import os
import pty
import re
import select
import time
from pathlib import Path

import pytest
from support.command import PROGRAM, Cuebook, environment
from support.served import ServedNode
from support.tiny import tiny_model_dir


def test_status_shows_nodes_and_instances(cuebook: Cuebook) -> None:
    shown = cuebook("status")
    assert shown.code == 0
    assert re.search(r"stage +node-\w+ +up", shown.out)
    assert re.search(r"tiny +instance-\w+ +ready", shown.out)
    assert re.search(r"runner-\w+ +instance-\w+ +cpu:0 +Ready", shown.out)


def test_status_as_json_is_the_state(cuebook: Cuebook, served: ServedNode) -> None:
    state = cuebook("status", "--json").json
    assert state["instances"].keys() == served.get("/state")["instances"].keys()


def test_models_lists_what_is_known_and_how_it_stands(cuebook: Cuebook) -> None:
    for words in (["models"], ["models", "list"]):
        shown = cuebook(*words)
        assert re.search(r"tiny +ready", shown.out)
        assert re.search(r"SmolLM2-135M-Instruct +known", shown.out)


def test_a_model_is_imported_and_removed(cuebook: Cuebook, tmp_path: Path) -> None:
    source = tiny_model_dir(tmp_path / "brought")
    taken = cuebook("models", "import", str(source), "--id", "guest/brought")
    assert (taken.code, "guest/brought is stored" in taken.out) == (0, True), taken.err
    assert "guest/brought" in cuebook("models").out
    assert cuebook("models", "remove", "guest/brought").code == 0
    again = cuebook("models", "remove", "guest/brought")
    assert again.code == 1
    assert "guest/brought" in again.err


def test_a_model_in_use_is_not_removed(cuebook: Cuebook) -> None:
    refused = cuebook("models", "remove", "tiny")
    assert refused.code == 1
    assert "DELETE /instance/" in refused.err


def test_place_waits_until_it_is_ready(cuebook: Cuebook, served: ServedNode) -> None:
    words = ["place", "tiny", "--context", "128", "--batch", "1", "--strategy", "auto", "--wait", "--json"]
    done = cuebook(*words)
    assert done.code == 0, done.err
    instance_id = done.json["instance_id"]
    view = served.get(f"/instance/{instance_id}")
    assert (view["status"], view["settings"]["context"]) == ("ready", 128)
    assert served.request("DELETE", f"/instance/{instance_id}")[0] == 200


def test_place_refuses_with_the_numbers(cuebook: Cuebook) -> None:
    refused = cuebook("place", "tiny", "--batch", "60000", "--context", "4096")
    assert refused.code == 1
    assert "fits nowhere" in refused.err
    assert re.search(r"needs [\d.]+ GiB", refused.err)
    unknown = cuebook("place", "nobody/nothing", offline=True)
    assert unknown.code == 1
    assert "nobody/nothing" in unknown.err


def test_preview_decides_nothing(cuebook: Cuebook, served: ServedNode) -> None:
    before = served.get("/state")["seq"]
    shown = cuebook("place", "tiny", "--preview")
    assert shown.code == 0
    assert re.search(r"as asked +fits +cpu:0", shown.out)
    assert served.get("/state")["seq"] == before


def test_one_message_gives_the_answer_of_the_api(cuebook: Cuebook, served: ServedNode) -> None:
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "go"}],
        "temperature": 0,
        "max_tokens": 12,
    }
    _, answer = served.request("POST", "/v1/chat/completions", body)
    shown = cuebook("chat", "tiny", "-m", "go", "--temperature", "0", "--max-tokens", "12")
    assert shown.code == 0, shown.err
    assert shown.out.rstrip("\n") == answer["choices"][0]["message"]["content"].rstrip("\n")


def test_a_conversation_has_a_memory_until_new(cuebook: Cuebook) -> None:
    options = ["--temperature", "0", "--max-tokens", "8", "--system", "Be brief."]
    first = cuebook("chat", "tiny", *options, typed="go\n").out
    twice = cuebook("chat", "tiny", *options, typed="go\ngo\n").out
    anew = cuebook("chat", "tiny", *options, typed="go\n/new\ngo\n").out
    said = first.split("\n", 1)[1]
    assert anew.endswith(said + said)
    assert twice != anew


def test_chat_refuses_what_the_node_refuses(cuebook: Cuebook) -> None:
    unknown = cuebook("chat", "nobody", "-m", "go")
    assert (unknown.code, unknown.out) == (1, "")
    assert "nobody" in unknown.err
    wild = cuebook("chat", "tiny", "-m", "go", "--temperature", "9")
    assert wild.code == 1
    assert "temperature" in wild.err


def test_ctrl_c_cancels_the_answer_and_not_the_program(cuebook: Cuebook, served: ServedNode) -> None:
    cancelled = len(served.events("TaskCancelled"))
    terminal = Terminal("chat", "endless", home=cuebook.home, api_port=cuebook.port)
    terminal.wait_for("> ")
    terminal.type("go\n")
    terminal.wait_for_more(60)
    terminal.type("\x03")
    terminal.wait_for("(cancelled)")
    terminal.wait_for("> ")
    terminal.type("\x03")
    terminal.wait_for("(Ctrl-D ends)")
    terminal.wait_for("> ")  # until the prompt is there the terminal is in line mode, where a Ctrl-D is lost
    terminal.type("\x04")
    assert terminal.end() == 0
    deadline = time.monotonic() + 60
    while len(served.events("TaskCancelled")) == cancelled:
        assert time.monotonic() < deadline, "the node was not told"
        time.sleep(0.05)


class Terminal:
    """A command in a terminal of its own."""

    def __init__(self, *words: str, **settings: object) -> None:
        self.shown = ""
        self._read = 0
        pid, self._fd = pty.fork()
        if pid == 0:
            os.execve(PROGRAM[0], [*PROGRAM, *words], environment(**settings))
        self._pid = pid

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def wait_for(self, text: str) -> None:
        """Wait until this appears after what was waited for before."""
        while (found := self.shown.find(text, self._read)) < 0:
            self._more(f"{text!r} in {self.shown!r}")
        self._read = found + len(text)

    def wait_for_more(self, characters: int) -> None:
        self._read = len(self.shown)
        while len(self.shown) < self._read + characters:
            self._more(f"{characters} more characters after {self.shown!r}")
        self._read = len(self.shown)

    def end(self) -> int:
        """The exit code of the command, once it has closed its terminal."""
        while self._more_or_end("the command's end"):
            pass
        _, status = os.waitpid(self._pid, 0)
        os.close(self._fd)
        return os.waitstatus_to_exitcode(status)

    def _more(self, missing: str) -> None:
        if not self._more_or_end(missing):
            pytest.fail(f"the command ended before {missing}")

    def _more_or_end(self, missing: str) -> bool:
        ready, _, _ = select.select([self._fd], [], [], 60)
        assert ready, f"not seen within 60 s: {missing}"
        try:
            self.shown += os.read(self._fd, 4096).decode(errors="replace")
        except OSError:  # how a terminal tells that nobody is left at its other end
            return False
        return True
