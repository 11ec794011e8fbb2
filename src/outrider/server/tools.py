"""Tools: functions described to the model, calls forced into their schemas, and read out of its answer.

The models served here need no template for tools: the functions are described in a system message, and a call is the
JSON object `{"name", "arguments"}`, in tags where the model may also just answer. The grammar sees to its form.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from outrider.models import Message
from outrider.params import Grammar
from outrider.server.errors import Refusal
from outrider.server.schema import ChatMessage, ChatRequest, NamedChoice, Tool

OPEN, CLOSE = "<tool_call>", "</tool_call>"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call that the model made."""

    name: str
    arguments: str
    """JSON."""

    def as_json(self, *, index: int | None = None) -> dict[str, Any]:
        """OpenAI's object; with an index in a stream."""
        head: dict[str, Any] = {} if index is None else {"index": index}
        function = {"name": self.name, "arguments": self.arguments}
        return {**head, "id": f"call_{uuid4().hex[:24]}", "type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolPlan:
    """What a request's tools mean for its prompt, its grammar and its answer."""

    tools: Sequence[Tool]
    forced: bool
    """Whether the answer is a call and nothing else."""

    @property
    def grammar(self) -> Grammar:
        """A call of one of the tools, or any text that does not start as one."""
        calls = {"anyOf": [_call_schema(tool) for tool in self.tools]}
        if self.forced:
            return Grammar.json_schema(calls)
        # a text that starts otherwise is free
        source = f'start: call | text\ncall: "{OPEN}" body "{CLOSE}"\nbody: %json {json.dumps(calls)}\n'
        return Grammar(kind="lark", source=source + "text: /([^<](.|\\n)*)?/\n")

    def instruction(self) -> str:
        """The system message that describes the tools."""
        functions = [tool.function.model_dump(exclude_none=True, exclude={"strict"}) for tool in self.tools]
        how = (
            'Answer with one JSON object, {"name": ..., "arguments": {...}}, which calls a function.'
            if self.forced
            else f'To call one, answer with {OPEN}{{"name": ..., "arguments": {{...}}}}{CLOSE} and nothing else. '
            "Where none is of use, answer the question itself."
        )
        return f"You can call these functions:\n{json.dumps(functions)}\n{how}"

    def read(self, text: str) -> ToolCall | None:
        """The call in a finished answer, if it is one."""
        body = text.strip()
        if not self.forced:
            if not body.startswith(OPEN):
                return None
            body = body.removeprefix(OPEN).removesuffix(CLOSE)
        try:
            found = json.loads(body)
            return ToolCall(found["name"], json.dumps(found["arguments"], ensure_ascii=False))
        except (ValueError, KeyError, TypeError):  # it was cut by max_tokens
            return None


def _call_schema(tool: Tool) -> dict[str, Any]:
    parameters = tool.function.parameters or {"type": "object", "properties": {}, "additionalProperties": False}
    return {
        "type": "object",
        "properties": {"name": {"const": tool.function.name}, "arguments": parameters},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def plan_tools(body: ChatRequest) -> ToolPlan | None:
    """What the request's tools and tool choice ask for; None where no tool may be called.

    Raises:
        Refusal: a choice of a tool that is not there, or of tools beside a response format.
    """
    choice = body.tool_choice or ("auto" if body.tools else "none")
    if not body.tools:
        if choice not in ("none", "auto"):
            raise Refusal(400, "tool_choice needs tools", param="tool_choice")
        return None
    if choice == "none":
        return None
    if body.response_format is not None and body.response_format.type != "text":
        raise Refusal(400, "give tools or a response_format, not both", param="response_format")
    if isinstance(choice, NamedChoice):
        named = [tool for tool in body.tools if tool.function.name == choice.function.name]
        if not named:
            raise Refusal(400, f"there is no tool {choice.function.name!r} among the tools", param="tool_choice")
        return ToolPlan(named, forced=True)
    return ToolPlan(body.tools, forced=choice == "required")


def turns_of(messages: Sequence[ChatMessage], plan: ToolPlan | None) -> list[Message]:
    """The conversation in the three roles that every chat template knows."""
    turns = [_turn(message) for message in messages]
    if plan is not None:
        if turns[0]["role"] == "system":
            turns[0] = Message(role="system", content=f"{turns[0]['content']}\n\n{plan.instruction()}")
        else:
            turns.insert(0, Message(role="system", content=plan.instruction()))
    return turns


def _turn(message: ChatMessage) -> Message:
    if message.role == "tool":
        return Message(role="user", content=f"<tool_response>\n{message.text()}\n</tool_response>")
    text = message.text()
    for call in message.tool_calls or ():
        body = f'{{"name": {json.dumps(call.function.name)}, "arguments": {call.function.arguments}}}'
        text += f"{OPEN}{body}{CLOSE}"
    return Message(role="system" if message.role == "developer" else message.role, content=text)
