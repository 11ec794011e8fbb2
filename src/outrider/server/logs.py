"""What the server writes down: one line for each answer, as text or JSON, and never what was said."""

from __future__ import annotations

import json
import logging
import time
from typing import Any, Literal

from outrider.engine import Completion

LogFormat = Literal["text", "json"]


def summary(route: str, request: str, completion: Completion) -> dict[str, Any]:
    """What is worth knowing of an answer, without a word of it."""
    usage, timings = completion.usage, completion.timings
    found: dict[str, Any] = {
        "request_id": request,
        "route": route,
        "index": completion.index,
        "finish_reason": completion.finish_reason,
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "completion_tokens": usage.completion_tokens,
        "accepted_draft_tokens": usage.accepted,
        "rejected_draft_tokens": usage.rejected,
        "passes": usage.passes,
    }
    for name, seconds in (("queued_ms", timings.queued), ("ttft_ms", timings.ttft), ("decode_ms", timings.decode)):
        if seconds is not None:
            found[name] = round(1e3 * seconds, 2)
    if completion.error is not None:
        found["error"] = completion.error
    return found


class _Json(logging.Formatter):
    """A JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        line = {"time": moment, "level": record.levelname.lower(), "message": record.getMessage()}
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class _Text(logging.Formatter):
    """A line with the fields behind the message."""

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", {})
        told = " ".join(f"{name}={value}" for name, value in fields.items())
        return super().format(record) + (f" {told}" if told else "")


def configure(form: LogFormat, level: str) -> None:
    """Write Outrider's log to standard error.

    Args:
        form: `text` or `json`.
        level: as `info` or `warning`.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(_Json() if form == "json" else _Text("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("outrider")
    logger.handlers[:] = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False
