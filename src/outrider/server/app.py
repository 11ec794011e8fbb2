"""The routes: OpenAI's API, operations, and the page."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outrider import __version__
from outrider.api import Engine
from outrider.engine import AsyncHandle, Completion, EngineStats
from outrider.errors import EngineClosed, InvalidRequest
from outrider.server import errors
from outrider.server.answers import Answers, Kind
from outrider.server.config import ServerConfig
from outrider.server.errors import Refusal
from outrider.server.intake import check_model, read
from outrider.server.logs import summary
from outrider.server.metrics import Metrics
from outrider.server.pacing import pieces
from outrider.server.schema import (
    ChatRequest,
    CompletionRequest,
    ErrorResponse,
    ModeWish,
)
from outrider.server.spans import Spans

log = logging.getLogger("outrider")

_STATIC = Path(__file__).parent / "static"
_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorResponse} for status in (400, 401, 404, 413, 429, 503)
}
_WATCH = 0.1
"""Seconds between looks whether a client that waits is still there."""
_EVENT_SECONDS = 1.0


class ServerState:
    """What the routes share."""

    def __init__(self, engine: Engine, config: ServerConfig) -> None:
        self.engine = engine
        self.config = config
        self.metrics = Metrics(engine)
        self.draining = False
        self.spans = Spans(config.otlp_endpoint) if config.otlp_endpoint is not None else None
        self._answer_seconds = 1.0

    @property
    def model(self) -> str:
        """Name that clients call the model by."""
        return self.engine.manifest.name

    def retry_after(self) -> int:
        """Seconds in which the queue will have moved."""
        return max(1, math.ceil(self._answer_seconds))

    def finished(self, route: str, request: str, completion: Completion, headers: Mapping[str, str]) -> None:
        """Count an answer, write it into the log and to whoever traces, and learn how long they take."""
        self.metrics.finished(route, completion)
        record = summary(route, request, completion)
        log.info("answered %s", request, extra={"fields": record})
        if self.spans is not None:
            self.spans.add(record, completion, headers)
        timings = completion.timings
        if timings.last_token is not None:
            self._answer_seconds += 0.1 * (timings.last_token - timings.arrived - self._answer_seconds)


def create_app(engine: Engine, config: ServerConfig | None = None) -> FastAPI:
    """The server around an engine, which stays the caller's to close."""
    settings = config or ServerConfig()
    state = ServerState(engine, settings)
    app = FastAPI(
        title="Outrider",
        version=__version__,
        description="OpenAI-compatible serving with speculative decoding that never changes the text.",
        responses=_REFUSALS,
    )
    app.state.server = state
    errors.install(app, state.metrics, state.retry_after)
    app.add_middleware(_Gate, state=state)
    _openai_routes(app, state)
    _operations(app, state)
    _page(app)
    return app


_DISCARDED = 4
"""How many times the largest body is read of one that is refused for its size."""
_DISCARD_SECONDS = 5.0


class _Gate:
    """Refuses bodies that are too large, and everything but reads while the server drains."""

    def __init__(self, app: ASGIApp, state: ServerState) -> None:
        self._app = app
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        most = self._state.config.max_body
        if self._state.draining and scope["method"] == "POST":
            await self._refuse(Refusal(503, "the server is stopping; ask another one"), scope, receive, send)
            return
        too_large = Refusal(413, f"the body is larger than {most} bytes; send less, or raise max_body")
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > most:
            await self._discard(receive)
            await self._refuse(too_large, scope, receive, send)
            return
        received, whole = 0, False
        refusal: Refusal | None = None

        async def counted() -> Message:
            nonlocal received, whole, refusal
            if whole:  # what comes now is that the client hung up, which it may do late
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), self._state.config.body_timeout)
            except TimeoutError:
                refusal = Refusal(408, "the body did not come; send it at once")
                raise refusal from None
            whole = not message.get("more_body", False)
            received += len(message.get("body", b""))
            if received > most:
                refusal = too_large
                raise refusal
            return message

        async def unless_refused(message: Message) -> None:
            if refusal is None:  # what the routes make of the interruption is not the reason
                await send(message)

        await self._app(scope, counted, unless_refused)
        if refusal is not None:
            if refusal is too_large and not whole:
                await self._discard(receive)
            await self._refuse(refusal, scope, receive, send)

    async def _discard(self, receive: Receive) -> None:
        """Read on for a while: who is refused in the middle of a sentence gets a broken connection and no reason."""
        config = self._state.config
        left = _DISCARDED * config.max_body
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(config.body_timeout, _DISCARD_SECONDS)):
                while left > 0:
                    message = await receive()
                    left -= len(message.get("body", b""))
                    if not message.get("more_body", False):
                        return

    async def _refuse(self, refusal: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
        self._state.metrics.refused.labels(str(refusal.status)).inc()
        headers = {"Retry-After": str(self._state.retry_after()), "Connection": "close"}
        content = ErrorResponse(error=refusal.body).model_dump()
        await JSONResponse(content, refusal.status, headers)(scope, receive, send)


# --- who asks ------------------------------------------------------------------------------------------------


def _key(request: Request) -> str | None:
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" and key.strip() else None


def _tenant(request: Request) -> str:
    """Whose request it is; refuses strangers."""
    state: ServerState = request.app.state.server
    tenant = state.config.tenant(_key(request))
    if tenant is None and state.config.admin(_key(request)):
        return "admin"
    if tenant is None:
        raise Refusal(401, "no known API key; send 'Authorization: Bearer KEY'", code="invalid_api_key")
    return "" if state.config.share_memory else tenant


def _admin(request: Request) -> None:
    state: ServerState = request.app.state.server
    if not state.config.admin_keys:
        raise Refusal(403, "this server has no admin keys; start it with --admin-key to change it while it runs")
    if not state.config.admin(_key(request)):
        raise Refusal(401, "an admin key is needed; send 'Authorization: Bearer KEY'", code="invalid_api_key")


Tenant = Annotated[str, Depends(_tenant)]


# --- OpenAI --------------------------------------------------------------------------------------------------


def _openai_routes(app: FastAPI, state: ServerState) -> None:
    @app.get("/v1/models", dependencies=[Depends(_tenant)])
    def models() -> dict[str, Any]:
        """The model that is served."""
        return {"object": "list", "data": [_model_card(state)]}

    @app.get("/v1/models/{name:path}", dependencies=[Depends(_tenant)])
    def model(name: str) -> dict[str, Any]:
        """The model of this name."""
        check_model(state.engine, name)
        return _model_card(state)

    @app.post("/v1/chat/completions", response_model=None)
    async def chat(body: ChatRequest, request: Request, tenant: Tenant) -> Response:
        """Answer a conversation."""
        return await _answer(state, request, body, tenant)

    @app.post("/v1/completions", response_model=None)
    async def complete(body: CompletionRequest, request: Request, tenant: Tenant) -> Response:
        """Continue a text."""
        return await _answer(state, request, body, tenant)


def _model_card(state: ServerState) -> dict[str, Any]:
    return {
        "id": state.model,
        "object": "model",
        "created": 0,
        "owned_by": "outrider",
        "max_model_len": state.engine.info.context_length,
    }


async def _answer(state: ServerState, request: Request, body: ChatRequest | CompletionRequest, tenant: str) -> Response:
    asked = await asyncio.to_thread(read, state.engine, state.config, body, tenant)
    handle = state.engine.submit_async(asked.prompt, asked.params, **asked.options)
    answers = asked.answers(state.engine, handle.id)
    headers = {"X-Request-Id": handle.id, "X-Accel-Buffering": "no"}
    if body.stream:
        events = _events(state, asked.kind, request, body, handle, answers, asked.params.n)
        return StreamingResponse(events, media_type="text/event-stream", headers=headers)
    completions = await _wait(handle, request)
    for completion in completions:
        state.finished(asked.kind, handle.id, completion, request.headers)
        if completion.finish_reason == "error":
            raise Refusal(500, completion.error or "the model failed")
    return JSONResponse(answers.whole(completions), headers=headers)


async def _wait(handle: AsyncHandle, request: Request) -> list[Completion]:
    """The completions; a client that hangs up cancels the request."""
    waiting = asyncio.create_task(handle.result_async())
    try:
        while not (await asyncio.wait({waiting}, timeout=_WATCH))[0]:
            if await request.is_disconnected():
                raise Refusal(499, "the client is gone")
        return waiting.result().completions
    finally:
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


async def _events(
    state: ServerState,
    kind: Kind,
    request: Request,
    body: ChatRequest | CompletionRequest,
    handle: AsyncHandle,
    answers: Answers,
    n: int,
) -> AsyncIterator[str]:
    """Server-sent events of one answer; leaving early, as a client that hangs up makes it, cancels the request."""
    options = body.stream_options
    done = [Completion(index) for index in range(n)]
    stream = pieces(handle.chunks(), smooth=(body.pace or state.config.pace) == "smooth")
    try:
        for event in answers.opening(n):
            yield _sse(event)
        async for piece in stream:
            if piece.last:
                done[piece.chunk.index].add(piece.chunk)
                if piece.chunk.finish_reason is not None:
                    state.finished(kind, handle.id, done[piece.chunk.index], request.headers)
                if piece.chunk.finish_reason == "error":
                    raise EngineClosed(piece.chunk.error or "the model failed")
            written = answers.piece(piece, tokens=options is not None and options.include_tokens)
            if written is not None:
                yield _sse(written)
        if options is not None and options.include_usage:
            yield _sse(answers.closing([completion.usage for completion in done]))
        yield "data: [DONE]\n\n"
    except EngineClosed as error:
        yield _sse(ErrorResponse(error=errors.as_refusal(error).body).model_dump())
    finally:
        handle.cancel()
        await stream.aclose()  # type: ignore[attr-defined]  # an asynchronous generator


def _sse(event: dict[str, Any]) -> str:
    return f"data: {json.dumps(event, ensure_ascii=False)}\n\n"


# --- operations ----------------------------------------------------------------------------------------------


def _operations(app: FastAPI, state: ServerState) -> None:
    @app.get("/health")
    def health() -> dict[str, str]:
        """Whether the process should live: not when the engine is dead."""
        if not state.engine.alive:
            raise Refusal(503, "the engine is dead; start the server again")
        return {"status": "ok"}

    @app.get("/ready")
    def ready() -> dict[str, str]:
        """Whether to send requests here."""
        if state.draining or not state.engine.alive:
            raise Refusal(503, "stopping" if state.draining else "the engine is dead")
        return {"status": "ready"}

    @app.get("/metrics", response_class=PlainTextResponse)
    def metrics() -> Response:
        """Prometheus."""
        return Response(generate_latest(state.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/v1/speculation", dependencies=[Depends(_tenant)])
    def speculation() -> dict[str, Any]:
        """What speculation does and why."""
        return _speculation(state)

    @app.patch("/v1/speculation", dependencies=[Depends(_admin)])
    def change(body: ModeWish) -> dict[str, Any]:
        """Change what requests that do not choose do, from now on."""
        fields = body.model_dump(exclude_none=True)
        if not fields:
            raise InvalidRequest("nothing to change; give speculation, shrink_below or disable_below")
        state.engine.set_mode(**fields)
        log.info("speculation changed: %s", fields)
        return _speculation(state)

    @app.get("/v1/events", response_model=None, dependencies=[Depends(_tenant)])
    async def events(request: Request) -> StreamingResponse:
        """What the page draws, once a second."""
        return StreamingResponse(_watch(state, request), media_type="text/event-stream")


def _speculation(state: ServerState) -> dict[str, Any]:
    engine = state.engine
    settings = engine.settings
    cost = engine.controller.cost
    return {
        "speculation": settings.speculation,
        "shrink_below": settings.shrink_below,
        "disable_below": settings.disable_below,
        "objective": settings.objective,
        "verification": settings.verification,
        "control": asdict(engine.controller.counts),
        "reliability_error": engine.controller.reliability(),
        "proposers": {name: asdict(counts) for name, counts in engine.snapshot().by_source.items()},
        "pass_seconds": {str(width): seconds for width, seconds in cost.curve().items()} if cost is not None else {},
        "draft": asdict(engine.draft) if engine.draft is not None else None,
    }


async def _watch(state: ServerState, request: Request) -> AsyncIterator[str]:
    before = await asyncio.to_thread(state.engine.snapshot)
    while not state.draining and not await request.is_disconnected():
        await asyncio.sleep(_EVENT_SECONDS)
        try:
            now = await asyncio.to_thread(state.engine.snapshot)
            gauges = await asyncio.to_thread(state.engine.gauges)
        except EngineClosed:
            return
        yield _sse({**_rates(before, now), "running": gauges.running, "waiting": gauges.waiting,
                    "kv_used": gauges.kv_used, "kv_blocks": gauges.kv_blocks})  # fmt: skip
        before = now


def _rates(before: EngineStats, now: EngineStats) -> dict[str, float | None]:
    steps = now.steps - before.steps
    drafted = now.drafted - before.drafted
    emitted = now.emitted - before.emitted
    return {
        "tokens_per_second": emitted / _EVENT_SECONDS,
        "acceptance": (now.accepted - before.accepted) / drafted if drafted else None,
        "tokens_per_step": emitted / steps if steps else None,
        "window": drafted / steps if steps else None,
    }


# --- the page ------------------------------------------------------------------------------------------------


def _page(app: FastAPI) -> None:
    def file(name: str, media_type: str) -> Callable[[], FileResponse]:
        def give() -> FileResponse:
            return FileResponse(_STATIC / name, media_type=media_type, headers=_PAGE_HEADERS)

        return give

    for path, name, media_type in (
        ("/", "index.html", "text/html"),
        ("/static/app.js", "app.js", "text/javascript"),
        ("/static/style.css", "style.css", "text/css"),
        ("/favicon.ico", "icon.svg", "image/svg+xml"),
    ):
        app.get(path, include_in_schema=False)(file(name, media_type))
