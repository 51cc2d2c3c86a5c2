"""Bodies and query parameters as the Structs that handlers take; a 400 names the place of what is wrong."""

from __future__ import annotations

import types
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec
from aiohttp import web
from msgspec import Meta

from api.errors import invalid

Name = Annotated[str, Meta(max_length=200)]
"""The id of something. Commands are logged with the names in them, so these have a bound."""


def decode_body(data: bytes, kind: type[msgspec.Struct]) -> msgspec.Struct:
    """The body as ``kind``. Raises `ApiError` (400) that names the field at fault."""
    if not data.strip():
        raise invalid("The request has no body; send a JSON object.", code="invalid_json")
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise _wrong_field("body", error, kind) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise invalid(f"The body is not valid JSON: {error}.", code="invalid_json") from None
    except RecursionError:
        raise invalid("The body is nested too deeply.", code="invalid_json") from None


def decode_query(request: web.Request, kind: type[msgspec.Struct]) -> msgspec.Struct:
    """The query parameters as ``kind``; one that is an object is given as JSON.

    Raises `ApiError` (400) that names the parameter.
    """
    joined: dict[str, Any] = {name: ",".join(request.query.getall(name)) for name in request.query}
    try:
        for name in joined.keys() & json_parameters(kind):
            joined[name] = msgspec.json.decode(joined[name])
        return msgspec.convert(joined, kind, strict=False)
    except msgspec.ValidationError as error:
        raise _wrong_field("query", error, kind) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise invalid(f"The query is wrong: not valid JSON: {error}.", code="invalid_json") from None


def json_parameters(kind: type[msgspec.Struct]) -> set[str]:
    """The fields of a query's Struct that are Structs themselves, and so are given as JSON."""
    return {name for name, hint in get_type_hints(kind).items() if _struct_in(hint) is not None}


def _struct_in(hint: Any) -> type[msgspec.Struct] | None:
    """The Struct that a field holds, alone or in a union."""
    union = get_origin(hint) in (Union, types.UnionType)
    options = get_args(hint) if union else (hint,)
    structs = (each for each in options if isinstance(each, type) and issubclass(each, msgspec.Struct))
    return next(structs, None)


def _wrong_field(where: str, error: msgspec.ValidationError, kind: type[msgspec.Struct]) -> Exception:
    what, _, path = str(error).rpartition(" - at ")
    path = path.strip("`")
    if not what:
        return invalid(f"The {where} is wrong: {error}{_known(str(error), '$', kind)}.", code="invalid_type")
    field = path.removeprefix("$.")
    known = _known(what, path, kind)
    return invalid(f"The {where} is wrong at `{path}`: {what}{known}.", param=field, code="invalid_type")


def _known(what: str, path: str, kind: type[msgspec.Struct]) -> str:
    """The fields that there are, where an unknown one was given."""
    if "unknown field" not in what:
        return ""
    found: type[msgspec.Struct] | None = kind
    for name in path.split(".")[1:]:
        found = _struct_in(get_type_hints(found).get(name)) if found else None
    return f"; known are {', '.join(found.__struct_fields__)}" if found else ""
