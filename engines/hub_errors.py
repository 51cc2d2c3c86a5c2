"""What errors of huggingface_hub mean and what to do about each."""

from __future__ import annotations

from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    HTTPError,  # pyright: ignore[reportPrivateImportUsage]
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from engines.model_errors import FetchError, refusal

ERRORS = (HTTPError, OSError, HFValidationError)
"""Every error that huggingface_hub raises over a request; `HTTPError` is its HTTP client's root."""

_LOG_IN = "set HF_TOKEN or run `hf auth login` where the node runs"


def explain(error: Exception, model_id: str, endpoint: str) -> FetchError:
    """The `FetchError` for an error out of `ERRORS` met over ``model_id`` at the hub ``endpoint``."""
    match error:
        case OfflineModeIsEnabled():
            return failed("offline", model_id, "HF_HUB_OFFLINE is set", "Unset it, or import the files")
        case GatedRepoError():
            fix = f"Accept its terms at {endpoint}/{model_id}, then {_LOG_IN}"
            return failed("model_gated", model_id, "its owner wants its terms accepted", fix)
        case RevisionNotFoundError():
            fix = f"See {endpoint}/{model_id} for those there are"
            return failed("revision_not_found", model_id, "it has no such revision", fix)
        case RepositoryNotFoundError() | HFValidationError():
            fix = f"Check the spelling; for a private model {_LOG_IN}"
            return failed("model_not_found", model_id, f"{endpoint} shows no such model", fix)
        case HfHubHTTPError():
            return _status(error.response.status_code, model_id, endpoint)
        case HTTPError():
            reason = f"{endpoint} can't be reached ({type(error).__name__}: {error})"
            fix = "Check the network, the proxy and HF_ENDPOINT, or import the files from a directory"
            return failed("hub_unreachable", model_id, reason, fix, retryable=True)
        case OSError() if error.errno is not None:
            fix = "Free some room, or choose another disk"
            return failed("store_not_writable", model_id, str(error), fix)
        case _:
            reason = str(error).split("\n")[0]
            return failed("download_broken", model_id, reason, "Try again", retryable=True)


def failed(code: str, model_id: str, reason: str, fix: str, *, retryable: bool = False) -> FetchError:
    """A `FetchError` in two sentences: the reason, and what to do."""
    message = f"{model_id} can't be fetched from the hub: {reason}. {fix}."
    return FetchError(refusal(code, message), retryable=retryable)


def _status(status: int, model_id: str, endpoint: str) -> FetchError:
    reason = f"{endpoint} answered with status {status}"
    if status in (401, 403):
        return failed("not_authorised", model_id, reason, f"If you may have it, {_LOG_IN}")
    late = status == 429 or status >= 500
    return failed("hub_refused", model_id, reason, "Try again later", retryable=late)
