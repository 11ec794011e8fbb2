"""OpenAI's objects out of the engine's, whole and piece by piece."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Literal

from outrider.engine import Completion, EmittedToken, FinishReason, Usage
from outrider.models import Tokenizer
from outrider.server.pacing import Piece
from outrider.server.tools import OPEN, ToolPlan

Kind = Literal["chat", "text"]
_REASONS: dict[FinishReason, str] = {"stop": "stop", "length": "length", "deadline": "length", "cancelled": "stop"}


class Answers:
    """Writes the answers to one request.

    Args:
        kind: chat or text completion.
        request: the engine's name for it.
        model: name of the model.
        tokenizer: its tokens, for log-probabilities.
        logprobs: whether they are wanted.
        plan: the tools that may be called.
    """

    def __init__(
        self,
        kind: Kind,
        request: str,
        model: str,
        tokenizer: Tokenizer,
        *,
        logprobs: bool,
        plan: ToolPlan | None = None,
    ) -> None:
        self._kind = kind
        self._tokenizer = tokenizer
        self._logprobs = logprobs
        self._plan = plan
        self._held: dict[int, str | None] = {}  # of each completion, text that may be a call; None once it is not
        self._offsets: dict[int, int] = {}
        prefix, name = ("chatcmpl", "chat.completion") if kind == "chat" else ("cmpl", "text_completion")
        self._head = {"id": f"{prefix}-{request}", "object": name, "created": int(time.time()), "model": model}

    # --- whole -----------------------------------------------------------------------------------------------

    def whole(self, completions: Sequence[Completion]) -> dict[str, Any]:
        """The answer of a request without a stream."""
        choices = []
        for completion in completions:
            choice: dict[str, Any] = {"index": completion.index, "finish_reason": _reason(completion.finish_reason)}
            if self._kind == "chat":
                choice["message"] = {"role": "assistant", "content": completion.text, "refusal": None}
                call = self._plan.read(completion.text) if self._plan is not None else None
                if call is not None:
                    choice["message"].update(content=None, tool_calls=[call.as_json()])
                    choice["finish_reason"] = "tool_calls"
            else:
                choice["text"] = completion.text
            choice["logprobs"] = self._logprobs_of(completion.index, completion.tokens)
            choices.append(choice)
        return {**self._head, "choices": choices, "usage": usage_of([c.usage for c in completions])}

    # --- in pieces -------------------------------------------------------------------------------------------

    def opening(self, n: int) -> list[dict[str, Any]]:
        """What a chat's stream begins with: whose words follow."""
        if self._kind == "text":
            return []
        role = {"role": "assistant", "content": ""}
        return [self._event([{"index": i, "delta": role, "logprobs": None, "finish_reason": None}]) for i in range(n)]

    def piece(self, piece: Piece, *, tokens: bool) -> dict[str, Any] | None:
        """One event of a stream; None where it would say nothing."""
        done = piece.last and piece.chunk.finish_reason is not None
        if self._plan is not None:
            return self._planned(piece, self._plan, done=done)
        if not piece.text and not done and not (self._logprobs and piece.tokens):
            return None
        choice: dict[str, Any] = {"index": piece.chunk.index}
        if self._kind == "chat":
            choice["delta"] = {"content": piece.text} if piece.text else {}
        else:
            choice["text"] = piece.text
        choice["logprobs"] = self._logprobs_of(piece.chunk.index, piece.tokens)
        choice["finish_reason"] = _reason(piece.chunk.finish_reason) if done else None
        if tokens:
            choice["tokens"] = [{"id": t.id, "text": t.text, "accepted": t.accepted} for t in piece.tokens]
        return self._event([choice])

    def _planned(self, piece: Piece, plan: ToolPlan, *, done: bool) -> dict[str, Any] | None:
        """An event of an answer that may be a call: text is held back while it may be one."""
        index = piece.chunk.index
        held = self._held.get(index, "")
        text = piece.text if held is None else held + piece.text
        may_be = held is not None and (plan.forced or text.startswith(OPEN) or OPEN.startswith(text))
        if may_be and not done:
            self._held[index] = text
            return None
        self._held[index] = None
        choice: dict[str, Any] = {"index": index, "delta": {"content": text} if text else {}}
        choice["logprobs"] = self._logprobs_of(index, piece.tokens)
        choice["finish_reason"] = _reason(piece.chunk.finish_reason) if done else None
        call = plan.read(text) if done and may_be else None
        if call is not None:
            choice.update(delta={"tool_calls": [call.as_json(index=0)]}, finish_reason="tool_calls")
        return self._event([choice])

    def closing(self, usages: Sequence[Usage]) -> dict[str, Any]:
        """The event that says what a stream used."""
        return {**self._event([]), "usage": usage_of(usages)}

    def _event(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        name = "chat.completion.chunk" if self._kind == "chat" else "text_completion"
        return {**self._head, "object": name, "choices": choices}

    # --- log-probabilities -----------------------------------------------------------------------------------

    def _logprobs_of(self, index: int, tokens: Sequence[EmittedToken]) -> dict[str, Any] | None:
        if not self._logprobs:
            return None
        if self._kind == "chat":
            return {"content": [self._entry(token) for token in tokens], "refusal": None}
        result: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        offset = self._offsets.get(index, 0)
        for token in tokens:
            result["tokens"].append(self._text(token.id))
            result["token_logprobs"].append(token.logprobs.logprob if token.logprobs else None)
            top = token.logprobs.top if token.logprobs else ()
            result["top_logprobs"].append({self._text(other): logprob for other, logprob in top})
            result["text_offset"].append(offset)
            offset += len(token.text)
        self._offsets[index] = offset
        return result

    def _entry(self, token: EmittedToken) -> dict[str, Any]:
        logprobs = token.logprobs
        return {
            **self._named(token.id, logprobs.logprob if logprobs else None),
            "top_logprobs": [self._named(other, value) for other, value in (logprobs.top if logprobs else ())],
        }

    def _named(self, token: int, logprob: float | None) -> dict[str, Any]:
        return {"token": self._text(token), "logprob": logprob, "bytes": list(self._bytes(token))}

    def _bytes(self, token: int) -> bytes:
        known = self._tokenizer.token_bytes
        return known[token] if token < len(known) else b""

    def _text(self, token: int) -> str:
        return self._bytes(token).decode("utf-8", errors="replace")


def _reason(reason: FinishReason | None) -> str | None:
    return None if reason is None else _REASONS.get(reason, "stop")


def usage_of(usages: Sequence[Usage]) -> dict[str, Any]:
    """What a request used, its prompt counted once."""
    first = usages[0]
    said = sum(usage.completion_tokens for usage in usages)
    return {
        "prompt_tokens": first.prompt_tokens,
        "completion_tokens": said,
        "total_tokens": first.prompt_tokens + said,
        "prompt_tokens_details": {"cached_tokens": first.cached_tokens},
        "completion_tokens_details": {
            "accepted_prediction_tokens": sum(usage.accepted_prediction for usage in usages),
            "rejected_prediction_tokens": sum(usage.rejected_prediction for usage in usages),
            "accepted_draft_tokens": sum(usage.accepted for usage in usages),
            "rejected_draft_tokens": sum(usage.rejected for usage in usages),
        },
    }
