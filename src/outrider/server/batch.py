"""Many requests out of a file, in OpenAI's batch format: in order, resumable, as many at once as the engine takes."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from outrider.api import Engine
from outrider.engine import Handle
from outrider.errors import InvalidRequest, OutriderError
from outrider.server.config import ServerConfig
from outrider.server.errors import Refusal, as_refusal, explain
from outrider.server.intake import Asked, read
from outrider.server.schema import ChatRequest, CompletionRequest, ErrorResponse

_BODIES: dict[str, type[ChatRequest] | type[CompletionRequest]] = {
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
}
Watcher = Callable[[int, int], None]
"""Told after each answer: how many are done, of how many."""


@dataclass(frozen=True, slots=True)
class _Line:
    custom_id: str
    url: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Open:
    """A request that is on its way, or was refused."""

    line: _Line
    asked: Asked | None = None
    handle: Handle | None = None
    refusal: Refusal | None = None


def run_batch(engine: Engine, source: Path, target: Path, watch: Watcher, *, config: ServerConfig | None = None) -> int:
    """Answer every line of `source` into `target`, from where an earlier run stopped.

    A line that cannot be honoured gets an error in its place. Nothing is written but whole lines.

    Returns:
        How many lines got an error.

    Raises:
        InvalidRequest: a file cannot be read or written, a line is no request, or `target` belongs to another `source`.
        EngineClosed: the engine was closed or died; run it again.
    """
    settings = config or ServerConfig()
    lines = _read(source)
    done, failed = _resume(target, lines)
    waiting = iter(lines[done:])
    window: deque[_Open] = deque()
    ahead = 2 * engine.settings.max_running  # so that the batch is full while the head of the line is written
    try:
        with target.open("a", encoding="utf-8") as file:
            watch(done, len(lines))
            while True:
                while len(window) < ahead and (line := next(waiting, None)) is not None:
                    window.append(_submit(engine, settings, line))
                if not window:
                    return failed
                answer = _finish(engine, window.popleft())
                failed += answer["response"]["status_code"] != 200
                file.write(json.dumps(answer, ensure_ascii=False) + "\n")
                file.flush()
                done += 1
                watch(done, len(lines))
    except OSError as error:
        raise InvalidRequest(f"cannot write {target}: {error}") from None
    finally:
        for each in window:
            if each.handle is not None:
                each.handle.cancel()


def _read(source: Path) -> list[_Line]:
    try:
        text = source.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"cannot read {source}: {error}") from None
    lines = []
    seen = set()
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
            parsed = _Line(found["custom_id"], found["url"], found["body"])
        except (ValueError, KeyError, TypeError, RecursionError):
            raise InvalidRequest(f'{source}, line {number} needs "custom_id", "url" and "body"') from None
        if parsed.custom_id in seen:
            raise InvalidRequest(f"{source}, line {number}: custom_id {parsed.custom_id!r} stands there before")
        seen.add(parsed.custom_id)
        lines.append(parsed)
    return lines


def _resume(target: Path, lines: list[_Line]) -> tuple[int, int]:
    """How many lines are answered already, and how many of those with an error; cuts off half a line."""
    if not target.exists():
        return 0, 0
    try:
        raw = target.read_bytes()
        whole = raw[: raw.rfind(b"\n") + 1]
        if len(whole) < len(raw):
            target.write_bytes(whole)
        answers = [json.loads(line) for line in whole.splitlines()]
        ids = [answer["custom_id"] for answer in answers]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidRequest(f"{target} is not the output of a batch: {error}; choose another file") from None
    if ids != [line.custom_id for line in lines[: len(ids)]]:
        raise InvalidRequest(f"{target} answers other requests than those of the input; choose another file")
    return len(ids), sum(answer["response"]["status_code"] != 200 for answer in answers)


def _submit(engine: Engine, config: ServerConfig, line: _Line) -> _Open:
    try:
        if line.url not in _BODIES:
            raise Refusal(400, f"url {line.url!r} is not known; use {' or '.join(_BODIES)}", param="url")
        body = _BODIES[line.url].model_validate(line.body)
        if body.stream:
            raise Refusal(400, "a batch has no streams; leave out stream", param="stream")
        asked = read(engine, config, body, "")
        return _Open(line, asked, engine.stream(asked.prompt, asked.params, **asked.options))
    except ValidationError as error:
        return _Open(line, refusal=explain(error.errors()))
    except Refusal as refusal:
        return _Open(line, refusal=refusal)
    except InvalidRequest as error:
        return _Open(line, refusal=as_refusal(error))


def _finish(engine: Engine, each: _Open) -> dict[str, Any]:
    request = each.handle.id if each.handle is not None else ""
    if each.refusal is not None:
        return _written(each.line, request, each.refusal.status, ErrorResponse(error=each.refusal.body).model_dump())
    assert each.handle is not None
    assert each.asked is not None
    completions = each.handle.result().completions
    broken = next((completion.error for completion in completions if completion.finish_reason == "error"), None)
    if broken is not None:
        refusal = as_refusal(OutriderError(broken))
        return _written(each.line, request, refusal.status, ErrorResponse(error=refusal.body).model_dump())
    return _written(each.line, request, 200, each.asked.answers(engine, request).whole(completions))


def _written(line: _Line, request: str, status: int, body: dict[str, Any]) -> dict[str, Any]:
    response = {"status_code": status, "request_id": request, "body": body}
    return {
        "id": f"batch_{request or line.custom_id}",
        "custom_id": line.custom_id,
        "response": response,
        "error": None,
    }
