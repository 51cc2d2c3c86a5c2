"""What Datasette is told about the files: titles, what each table and column means, ready-made queries."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import msgspec

from projections.schema import catalogue


class Query(msgspec.Struct, frozen=True):
    """A ready-made query; words with a colon in its SQL are asked for in a form."""

    title: str
    sql: str
    description: str = ""


class Queries(msgspec.Struct, frozen=True):
    """`browse_queries.toml`: the queries on each file, by their names in the address."""

    projections: dict[str, Query]
    log: dict[str, Query]


def queries() -> Queries:
    """The ready-made queries."""
    text = files("api.cli").joinpath("browse_queries.toml").read_text("utf-8")
    return msgspec.toml.decode(text, type=Queries)


def metadata(log: str, tables: str) -> dict[str, Any]:
    """Datasette's metadata for databases of these names, as JSON-able values."""
    ready = queries()
    return {
        "title": "Cuebook",
        "description": "Every decision of the cluster, and what came of it.",
        "databases": {
            tables: {
                "description": "The cluster as the log tells it. Made from the log; can be made again.",
                "queries": msgspec.to_builtins(ready.projections),
                "tables": {entry.name: _described(entry.comment, entry.columns) for entry in catalogue()},
            },
            log: {
                "description": "The log: every decision with its events, append-only, row chained to row.",
                "queries": msgspec.to_builtins(ready.log),
            },
        },
    }


def _described(comment: str, columns: dict[str, str]) -> dict[str, Any]:
    return {"description": comment, "columns": {name: text for name, text in columns.items() if text}}
