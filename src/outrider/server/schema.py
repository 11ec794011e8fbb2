"""What clients send, in OpenAI's words, and what they get back."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from outrider.params import MAX_LOGPROBS, Grammar


class _Asked(BaseModel):
    model_config = ConfigDict(extra="forbid")


class TextPart(_Asked):
    """A piece of a message."""

    type: Literal["text"]
    text: str


class CalledFunction(_Asked):
    """A call that was made before."""

    name: str
    arguments: str = "{}"


class MadeCall(_Asked):
    """A call that the assistant made earlier in the conversation."""

    id: str = ""
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(_Asked):
    """One turn of a chat."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    refusal: str | None = None
    tool_calls: list[MadeCall] | None = None
    tool_call_id: str | None = None

    @model_validator(mode="after")
    def _says_something(self) -> ChatMessage:
        if self.content is None and not self.tool_calls:
            raise ValueError(f"a message of {self.role} has no content")
        return self

    def text(self) -> str:
        """The content, its pieces joined."""
        if self.content is None:
            return ""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class Function(_Asked):
    """A function that the model may call."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """JSON schema of its arguments."""
    strict: bool | None = None


class Tool(_Asked):
    """A tool; always a function."""

    type: Literal["function"]
    function: Function


class _Name(_Asked):
    name: str


class NamedChoice(_Asked):
    """The one tool that must be called."""

    type: Literal["function"]
    function: _Name


class PredictedContent(_Asked):
    """Text that the client expects in the answer."""

    type: Literal["content"] = "content"
    content: str | list[TextPart]

    def text(self) -> str:
        """The content, its pieces joined."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class StreamOptions(_Asked):
    """What a stream tells beside the text."""

    include_usage: bool = False
    include_tokens: bool = False
    """Outrider's own: with each chunk its tokens, and which of them a draft proposed."""


class SchemaFormat(BaseModel):
    """A JSON schema and its name."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True, serialize_by_alias=True)

    name: str = ""
    description: str | None = None
    schema_: Annotated[dict[str, Any], Field(alias="schema")] = {}
    strict: bool | None = None


class ResponseFormat(_Asked):
    """The form of the answer."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: SchemaFormat | None = None

    @model_validator(mode="after")
    def _schema_with_its_type(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema goes with type json_schema, and that needs it")
        return self

    @property
    def grammar(self) -> Grammar | None:
        """What the answer must look like."""
        if self.json_schema is not None:
            return Grammar.json_schema(self.json_schema.schema_)
        return Grammar.json_object() if self.type == "json_object" else None


class SpeculationWish(_Asked):
    """How this request may speculate; as `Speculation`, or only the largest window."""

    mode: Literal["off", "auto", "threshold", "fixed"] = "auto"
    window: Annotated[int, Field(ge=0, le=64)] = 0
    max_window: Annotated[int | None, Field(ge=1, le=64)] = None
    shrink_below: Annotated[float | None, Field(ge=0.0, le=1.0)] = None
    disable_below: Annotated[float | None, Field(ge=0.0, le=1.0)] = None

    def fields(self) -> dict[str, Any]:
        """Fields of `Speculation`."""
        fields = self.model_dump(exclude_none=True, exclude={"max_window"}, exclude_unset=True)
        if self.max_window is not None:
            fields["window"] = self.max_window
        return fields


class _Sampling(_Asked):
    """What chat and completion requests have in common."""

    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    temperature: Annotated[float | None, Field(ge=0.0, le=2.0)] = None
    top_p: Annotated[float | None, Field(ge=0.0, le=1.0)] = None
    n: Annotated[int | None, Field(ge=1, le=128)] = None
    stop: str | list[str] | None = None
    max_tokens: Annotated[int | None, Field(ge=1)] = None
    presence_penalty: Annotated[float | None, Field(ge=-2.0, le=2.0)] = None
    frequency_penalty: Annotated[float | None, Field(ge=-2.0, le=2.0)] = None
    logit_bias: dict[str, float] | None = None
    seed: Annotated[int | None, Field(ge=0, lt=2**63)] = None
    user: str | None = None
    # beyond OpenAI
    top_k: Annotated[int | None, Field(ge=0)] = None
    min_p: Annotated[float | None, Field(ge=0.0, le=1.0)] = None
    repetition_penalty: Annotated[float | None, Field(gt=0.0, le=100.0)] = None
    min_tokens: Annotated[int | None, Field(ge=0)] = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    speculation: str | SpeculationWish | None = None
    remember: bool = True
    """Whether earlier answers may be drafted from, and this one be remembered for later ones."""
    pace: Literal["smooth", "burst"] | None = None
    timeout: Annotated[float | None, Field(gt=0)] = None

    @model_validator(mode="after")
    def _stream_options_need_a_stream(self) -> _Sampling:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is only for stream: true")
        return self


class ChatRequest(_Sampling):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: Annotated[int | None, Field(ge=1)] = None
    logprobs: bool = False
    top_logprobs: Annotated[int | None, Field(ge=0, le=MAX_LOGPROBS)] = None
    prediction: PredictedContent | None = None
    response_format: ResponseFormat | None = None
    tools: Annotated[list[Tool] | None, Field(max_length=64)] = None
    tool_choice: Literal["none", "auto", "required"] | NamedChoice | None = None
    parallel_tool_calls: bool | None = None
    store: Literal[False] | None = None

    @model_validator(mode="after")
    def _no_contradictions(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        if self.max_completion_tokens is not None and self.max_tokens is not None:
            raise ValueError("give max_completion_tokens or max_tokens, not both")
        return self


class CompletionRequest(_Sampling):
    """`POST /v1/completions`."""

    prompt: str | list[int]
    logprobs: Annotated[int | None, Field(ge=0, le=MAX_LOGPROBS)] = None
    echo: bool = False
    prediction: PredictedContent | None = None


class ModeWish(_Asked):
    """`PATCH /v1/speculation`: what requests that do not choose do from now on."""

    speculation: str | None = None
    shrink_below: Annotated[float | None, Field(ge=0.0, le=1.0)] = None
    disable_below: Annotated[float | None, Field(ge=0.0, le=1.0)] = None


class ErrorBody(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorResponse(BaseModel):
    """OpenAI's shape of every refusal."""

    error: ErrorBody
