"""Errors as clients get them: ``{"error": {message, type, param, code}}``, for every path and every status.

The shape is OpenAI's, so that its clients raise the exception their users expect. No traceback and no path
of a source file ever leaves the process.
"""

from __future__ import annotations

import logging

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from actors.refusal import MailboxFull, Rejected, Stopped
from api.answers import json_response
from events.errors import LogIncomplete
from events.ids import fresh
from events.values import Cause

logger = logging.getLogger(__name__)


class ErrorDetail(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong: a sentence for people, a ``code`` for programs, ``param`` the field at fault."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None
    detail: dict[str, str | int | float] | msgspec.UnsetType = msgspec.UNSET
    """Numbers and names behind the sentence, such as why each device refused a model."""


class ErrorAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The body of every answer that is an error."""

    error: ErrorDetail


class ApiError(Exception):
    """An answer with an error status. ``retry_after`` is in seconds, 0 where waiting does not help."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        detail: dict[str, str | int | float] | None = None,
        retry_after: float = 0.0,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after
        self.body = ErrorAnswer(
            error=ErrorDetail(
                message=message, type=type_of(status), param=param, code=code, detail=detail or msgspec.UNSET
            )
        )


def invalid(message: str, *, param: str | None = None, code: str = "invalid_value") -> ApiError:
    """A request that is wrong in itself; ``param`` is the field to correct."""
    return ApiError(400, message, param=param, code=code)


def not_found(message: str, *, code: str = "not_found") -> ApiError:
    """Something that is not there."""
    return ApiError(404, message, code=code)


RETRY_S = 2.0
"""Seconds that a client should wait where the cause names no time of its own."""

STATUS: dict[str, int] = {
    # The request is wrong.
    "invalid_prompt": 400,
    "invalid_sampling": 400,
    "invalid_settings": 400,
    "invalid_model_id": 400,
    "not_recordable": 400,
    "context_too_long": 400,
    "context_length_exceeded": 400,
    # What it names is not there.
    "model_not_found": 404,
    "model_unknown": 404,
    "model_not_running": 404,
    "instance_not_found": 404,
    # It contradicts what is so.
    "not_failed": 409,
    "model_exists": 409,
    "model_not_removable": 409,
    "idempotency_key_reused": 409,
    # It is understood, and can't be done with this model on these machines.
    "does_not_fit": 422,
    "experts_refused": 422,
    "model_files_missing": 422,
    "model_files_broken": 422,
    "model_not_servable": 422,
    "config_contradiction": 422,
    "gguf_unsupported": 422,
    "disk_full": 507,
    "store_not_writable": 507,
    # It can be done later.
    "instance_not_ready": 503,
    "overloaded": 503,
    "hub_unreachable": 503,
    "offline": 503,
    "node_stopped": 503,
    "node_stopping": 503,
    "instance_deleted": 503,
    "prompt_lost": 503,
    "runner_crashed": 503,
    "runner_ended": 503,
    "runner_exited": 503,
    "runner_killed": 503,
    "deadline_missed": 503,
    "out_of_memory": 503,
}
"""HTTP status by cause code; what is not here takes the caller's default."""


def type_of(status: int) -> str:
    """OpenAI's error type for a status."""
    if status == 409:
        return "conflict_error"
    if status < 500:
        return "invalid_request_error"
    return "service_unavailable_error" if status == 503 else "server_error"


def from_cause(cause: Cause, *, default: int, param: str | None = None) -> ApiError:
    """The answer for a refusal or failure; ``default`` is the status of a code that `STATUS` lacks."""
    status = STATUS.get(cause.code, default)
    wait = float(cause.detail.get("retry_after", RETRY_S)) if status == 503 else 0.0
    return ApiError(
        status, cause.message, code=cause.code, param=param, detail=cause.detail, retry_after=wait
    )


def from_exception(error: Exception) -> ApiError:
    """The answer for whatever a handler raised. What nobody foresaw is logged under an id and told by it."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, Rejected):
        return from_cause(error.cause, default=400)
    if isinstance(error, MailboxFull):
        return ApiError(503, f"{error}.", code="overloaded", retry_after=error.retry_after)
    if isinstance(error, Stopped):
        message = f"{error}; the node is starting, stopping or recovering. Try again in a moment."
        return ApiError(503, message, code="unavailable", retry_after=RETRY_S)
    if isinstance(error, LogIncomplete):
        return ApiError(503, str(error), code="past_incomplete", retry_after=RETRY_S)
    if isinstance(error, TimeoutError):
        message = "The log did not answer in time. Whether the command was taken is not known; repeat it."
        return ApiError(503, message, code="unavailable", retry_after=RETRY_S)
    if isinstance(error, web.RequestPayloadError):
        return invalid("The body is not what its headers say: it can't be decoded.", code="invalid_body")
    if isinstance(error, web.HTTPException):
        return _from_aiohttp(error)
    incident = fresh("error")
    logger.error("%s: a request failed", incident, exc_info=error)
    message = f"Something went wrong inside Cuebook. Its log says what, under {incident}."
    return ApiError(500, message, code="internal_error")


def _from_aiohttp(error: web.HTTPException) -> ApiError:
    if isinstance(error, web.HTTPMethodNotAllowed):
        message = f"{error.method} is not allowed here; allowed: {', '.join(sorted(error.allowed_methods))}."
        return ApiError(405, message, code="method_not_allowed")
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return ApiError(413, "The body is larger than the 32 MiB that are taken.", code="body_too_large")
    if isinstance(error, web.HTTPNotFound):
        return not_found("There is nothing at this path; GET /openapi.json lists what there is.")
    return ApiError(error.status, f"{error.reason}.", code="http_error")


def error_response(error: ApiError) -> web.Response:
    """The response that carries ``error``."""
    response = json_response(error.body, status=error.status)
    if error.retry_after:
        response.headers["Retry-After"] = str(max(1, round(error.retry_after)))
    return response


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn whatever a handler raises into an error answer."""
    try:
        return await handler(request)
    except Exception as error:
        response = error_response(from_exception(error))
        if isinstance(error, web.HTTPMethodNotAllowed):
            response.headers["Allow"] = ", ".join(sorted(error.allowed_methods))
        return response
