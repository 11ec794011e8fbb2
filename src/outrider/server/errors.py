"""Every refusal in OpenAI's shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from outrider.errors import EngineClosed, InvalidRequest, OutriderError, QueueFull, near_misses
from outrider.server.metrics import Metrics
from outrider.server.schema import ChatRequest, CompletionRequest, ErrorBody, ErrorResponse

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}
_KNOWN = [*ChatRequest.model_fields, *CompletionRequest.model_fields]


class Refusal(Exception):
    """A request that is answered by an error."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = ErrorBody(message=message, type=_TYPES.get(status, "server_error"), param=param, code=code)


def as_refusal(error: OutriderError) -> Refusal:
    """The status and words for one of our own errors."""
    if isinstance(error, InvalidRequest):
        return Refusal(400, str(error))
    if isinstance(error, QueueFull):
        return Refusal(429, str(error), code="queue_full")
    if isinstance(error, EngineClosed):
        return Refusal(503, str(error), code="engine_closed")
    return Refusal(500, str(error))


def install(app: FastAPI, metrics: Metrics, retry_after: Any) -> None:
    """Answer all errors of the app in one shape.

    Args:
        retry_after: called for the seconds after which a refused client should come again.
    """

    def answer(refusal: Refusal) -> JSONResponse:
        metrics.refused.labels(str(refusal.status)).inc()
        headers = {"Retry-After": str(retry_after())} if refusal.status in (429, 503) else {}
        if refusal.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        content = ErrorResponse(error=refusal.body).model_dump()
        return JSONResponse(content, refusal.status, headers)

    @app.exception_handler(Refusal)
    async def refused(_: Request, error: Refusal) -> JSONResponse:
        return answer(error)

    @app.exception_handler(OutriderError)
    async def ours(_: Request, error: OutriderError) -> JSONResponse:
        return answer(as_refusal(error))

    @app.exception_handler(RequestValidationError)
    async def malformed(_: Request, error: RequestValidationError) -> JSONResponse:
        return answer(explain(error.errors()))

    @app.exception_handler(HTTPException)
    async def http(_: Request, error: HTTPException) -> JSONResponse:
        return answer(Refusal(error.status_code, str(error.detail)))


def explain(problems: Sequence[Mapping[str, Any]]) -> Refusal:
    """Name the first field that is wrong, and what would be right.

    Args:
        problems: pydantic's.
    """
    problem = problems[0]
    where = [str(part) for part in problem["loc"] if part not in ("body", "query", "path")]
    param = ".".join(where) or None
    if problem["type"] == "json_invalid":
        return Refusal(400, f"the body is not JSON: {problem.get('ctx', {}).get('error', problem['msg'])}")
    if problem["type"] == "extra_forbidden":
        return Refusal(400, f"unknown parameter {param!r}.{near_misses(where[-1], _KNOWN)}", param=param)
    message = str(problem["msg"]).removeprefix("Value error, ")
    return Refusal(400, f"{param}: {message}" if param else message, param=param)
