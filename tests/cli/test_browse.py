"""`cuebook browse`: every ready-made query runs, and Datasette serves them beside a running node."""

from __future__ import annotations

import json
import re
import signal
import sqlite3
import subprocess
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest
from support.command import PROGRAM, Cuebook, environment
from support.served import ServedNode, eventually, free_port

from api.cli import browse
from api.cli.browse_metadata import Query, metadata, queries
from api.cli.main import main

QUERIES = {
    **{("projections.db", name): query for name, query in queries().projections.items()},
    **{("log.db", name): query for name, query in queries().log.items()},
}


@pytest.mark.parametrize(("file", "name"), QUERIES)
def test_every_query_runs(file: str, name: str, served: ServedNode) -> None:
    query: Query = QUERIES[file, name]
    asked = dict.fromkeys(re.findall(r"(?<!:):(\w+)", re.sub(r"'[^']*'", "''", query.sql)), "1")
    with closing(sqlite3.connect(f"file:{served.home / file}?mode=ro", uri=True)) as connection:
        connection.execute(query.sql, asked).fetchall()
    assert query.title


def test_the_story_of_the_newest_instance_is_there_without_an_id(served: ServedNode) -> None:
    query = QUERIES["projections.db", "story_of_an_instance"]

    def told() -> bool:
        with closing(sqlite3.connect(f"file:{served.home}/projections.db?mode=ro", uri=True)) as connection:
            rows = connection.execute(query.sql, {"instance_id": ""}).fetchall()
        return any("is ready" in row[1] for row in rows)

    eventually(told)  # the tables follow the log at their own pace


def test_every_table_is_described() -> None:
    tables = metadata("log", "projections")["databases"]["projections"]["tables"]
    assert tables["instances"]["columns"]["model_id"]
    assert all(table["description"] for table in tables.values())


def test_datasette_serves_both_files(served: ServedNode) -> None:
    port = free_port()
    process = subprocess.Popen(
        [*PROGRAM, "browse", "--listen", str(port)],
        env=environment(home=served.home),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    url = f"http://127.0.0.1:{port}"

    def rows(path: str) -> list[dict[str, object]]:
        with urllib.request.urlopen(f"{url}/{path}.json?_shape=array", timeout=10) as answer:
            return json.load(answer)

    def up() -> bool:
        try:
            return bool(rows("log/meta"))
        except OSError:
            return False

    try:
        eventually(up, 60)
        models = {row["model"] for row in rows("projections/what_runs_where")}
        assert {"tiny", "endless"} <= models
        assert rows("log/size_by_type")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
    with pytest.raises(OSError, match="refused"):
        rows("log/meta")


def test_a_taken_port_is_refused(served: ServedNode) -> None:
    refused = Cuebook(served.home)("browse", "--listen", str(served.port))
    assert refused.code == 1
    assert "--listen" in refused.err


def test_without_datasette_the_sentence_names_the_extra(
    served: ServedNode, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(browse, "find_spec", lambda _: None)
    assert main(["browse", "--home", str(served.home)]) == 1
    assert "pip install 'cuebook[browse]'" in capsys.readouterr().err


def test_without_files_the_sentence_says_what_makes_them(tmp_path: Path) -> None:
    refused = Cuebook(tmp_path)("browse")
    assert refused.code == 1
    assert "cuebook replay rebuild" in refused.err
