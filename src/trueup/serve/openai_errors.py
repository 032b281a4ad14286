"""Refusals and failures in the form that clients of OpenAI's API read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from trueup.schema import InputError, TrueupError

from .admission import BusyError, DrainingError, NotReadyError, ServiceError
from .codec import PromptError
from .request import RefusedError

IDEMPOTENCY_PAGE = "https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/"
SOON_S = 1  # when to ask again for what is a matter of moments
AFTER_DRAIN_S = 5  # by then a replacement should answer


class ApiError(Exception):
    """One answer with an error. `param` is the field of the request it is about."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str | None = None,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind or ("invalid_request_error" if status < 500 else "server_error")
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    @property
    def document(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    @property
    def body(self) -> bytes:
        return json.dumps(self.document).encode()

    @classmethod
    def of_key(cls, status: int, code: str, message: str) -> ApiError:
        """About the header Idempotency-Key, with a link to what it means, as the draft asks for."""
        headers = {"Link": f'<{IDEMPOTENCY_PAGE}>; rel="describedby"; type="text/html"'}
        if code == "idempotency_key_in_use":
            headers["Retry-After"] = str(SOON_S)
        elif status == 409:
            headers["x-should-retry"] = "false"  # the openai package repeats a 409 by itself
        return cls(status, message, kind="idempotency_error", code=code, headers=headers)


def api_error(error: TrueupError) -> ApiError:
    """The answer that a failure of the house stands for."""
    text = str(error)
    match error:
        case BusyError():
            return ApiError(
                429,
                text,
                kind="rate_limit_error",
                code="queue_full",
                headers={"Retry-After": str(error.retry_after_s)},
            )
        case DrainingError():
            return ApiError(503, text, code="draining", headers={"Retry-After": str(AFTER_DRAIN_S)})
        case NotReadyError():
            return ApiError(503, text, code="not_ready", headers={"Retry-After": str(SOON_S)})
        case ServiceError():
            return ApiError(500, text, code="engine_failed")
        case RefusedError():
            return ApiError(400, text, code="context_length_exceeded")
        case PromptError():
            where = None if error.where is None else f"messages.[{error.where}].content"
            return ApiError(400, text, param=where or "prompt", code="invalid_prompt")
        case InputError():
            return ApiError(400, text)
    return ApiError(500, text)


def not_found(model: str, served: str) -> ApiError:
    return ApiError(
        404,
        f"the model {model!r} does not exist here; this server has {served!r}",
        param="model",
        code="model_not_found",
    )


def timed_out(seconds: float) -> ApiError:
    """The openai package is told not to repeat what took too long: it would take as long again."""
    return ApiError(
        504,
        f"the answer took more than {seconds:g} s and was given up; ask for fewer tokens",
        code="timeout",
        headers={"x-should-retry": "false"},
    )
