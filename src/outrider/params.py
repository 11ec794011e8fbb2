"""What a request may ask for: sampling parameters and the speculation mode, validated once at the edge."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from outrider.errors import InvalidRequest, near_misses

MAX_LOGPROBS = 20
MAX_WINDOW = 64


def explain(error: ValidationError, known: list[str]) -> str:
    """Turn pydantic's report into one line that names each field, its value and what would be right."""
    lines = []
    for problem in error.errors():
        name = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            lines.append(f"unknown parameter {name!r}.{near_misses(name, known)}")
            continue
        message = problem["msg"].removeprefix("Value error, ")
        if not name or message.startswith(f"{name}="):
            lines.append(message)
        else:
            lines.append(f"{name}={problem['input']!r}: {message[0].lower()}{message[1:]}")
    return "; ".join(lines)


class Checked(BaseModel):
    """A frozen record whose constructor refuses unknown names and wrong values in words for people.

    Raises:
        InvalidRequest: names each field, its value and what would be right.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def __init__(self, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise InvalidRequest(explain(error, list(type(self).model_fields))) from None


class SamplingParams(Checked):
    """How the next token is chosen. Every field acts the same with and without speculation.

    The order is fixed: repetition penalty, presence and frequency penalty, `logit_bias`, `min_tokens`, then
    `temperature`, `top_k`, `top_p`, `min_p`. Log-probabilities are taken after the penalties, the bias and the
    minimum length, and before temperature and the three cuts.

    Raises:
        InvalidRequest: a value out of range, an unknown name, or a combination that contradicts itself.
    """

    temperature: Annotated[float, Field(ge=0.0, le=100.0)] = 0.0
    """0 takes the most likely token; above 0 the logits are divided by it before drawing."""
    top_k: Annotated[int, Field(ge=0)] = 0
    """Keep the k most likely tokens; 0 keeps all. Of equal logits the lower token id is kept."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Keep the smallest set of most likely tokens whose probability reaches this."""
    min_p: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """Keep tokens at least this fraction as likely as the most likely one."""
    repetition_penalty: Annotated[float, Field(gt=0.0, le=100.0)] = 1.0
    """Divides positive and multiplies negative logits of every token in prompt or output."""
    presence_penalty: Annotated[float, Field(ge=-2.0, le=2.0)] = 0.0
    """Subtracted once from the logit of every token in the output."""
    frequency_penalty: Annotated[float, Field(ge=-2.0, le=2.0)] = 0.0
    """Subtracted from a token's logit once for each time it stands in the output."""
    logit_bias: dict[int, float] = Field(default_factory=dict)
    """Added to the logits of these token ids, -100 to 100."""
    seed: Annotated[int | None, Field(ge=0, lt=2**64)] = None
    """Same seed, same text, speculation on or off. Without one a seed is drawn and reported."""
    n: Annotated[int, Field(ge=1, le=128)] = 1
    """Completions per prompt; completion i draws from stream i of the seed."""
    max_tokens: Annotated[int | None, Field(ge=0)] = None
    """Most tokens to generate; none means up to the context. 0 needs `echo`."""
    min_tokens: Annotated[int, Field(ge=0)] = 0
    """No end of text, stop token or stop string before this many tokens."""
    stop: tuple[str, ...] = ()
    """Strings that end the text; they and what follows are never shown."""
    stop_token_ids: tuple[int, ...] = ()
    """Token ids that end the text, beside the model's own end of text."""
    ignore_eos: bool = False
    """Go on past the model's own end-of-text tokens (`stop_token_ids` still stop)."""
    logprobs: Annotated[int | None, Field(ge=0, le=MAX_LOGPROBS)] = None
    """Log-probability of each token, with this many most likely alternatives."""
    echo: bool = False
    """Start the text with the prompt; with `logprobs` the prompt's tokens have theirs too."""
    skip_special_tokens: bool = True
    """Leave the model's control tokens out of the text."""

    @field_validator("stop", mode="before")
    @classmethod
    def _one_stop_is_a_list_of_one(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else () if value is None else value

    @field_validator("stop")
    @classmethod
    def _stops_have_text(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if "" in value:
            raise ValueError("a stop string must not be empty")
        return value

    @field_validator("logit_bias")
    @classmethod
    def _bias_in_range(cls, value: dict[int, float]) -> dict[int, float]:
        for token, bias in value.items():
            if token < 0 or not -100.0 <= bias <= 100.0:
                raise ValueError(f"token {token} has bias {bias}; ids are 0 or more, biases from -100 to 100")
        return value

    @model_validator(mode="after")
    def _no_contradictions(self) -> Self:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens={self.min_tokens} is more than max_tokens={self.max_tokens}")
        if self.max_tokens == 0 and not self.echo:
            raise ValueError("max_tokens=0 generates nothing; ask for 1 or more, or set echo to score the prompt")
        if self.n > 1 and self.temperature == 0.0:
            raise ValueError(f"n={self.n} at temperature 0 gives the same text n times; raise the temperature")
        return self

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken, without drawing."""
        return self.temperature == 0.0

    @property
    def shapes_logits(self) -> bool:
        """Whether any penalty, bias or minimum length changes the model's logits."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
            or bool(self.logit_bias)
            or self.min_tokens > 0
        )


_MODES: tuple[Literal["off", "auto", "threshold", "fixed"], ...] = ("off", "auto", "threshold", "fixed")
SHRINK_BELOW = 0.5
DISABLE_BELOW = 0.3


class Speculation(Checked):
    """How far a request may speculate.

    `off`; `auto`, where measured break-even decides; `threshold`, the field's rule of thumb (running acceptance below
    0.5 shrinks the window, below 0.3 disables it for a while); or `fixed`, always the same window.

    Raises:
        InvalidRequest: a value out of range, an unknown name, or a combination that contradicts itself.
    """

    mode: Literal["off", "auto", "threshold", "fixed"] = "auto"
    window: Annotated[int, Field(ge=0, le=MAX_WINDOW)] = 0
    """Most draft tokens in a pass; exactly so many for `fixed`. 0 leaves it to the mode."""
    shrink_below: Annotated[float, Field(ge=0.0, le=1.0)] = SHRINK_BELOW
    """Running acceptance below which `threshold` makes the window smaller."""
    disable_below: Annotated[float, Field(ge=0.0, le=1.0)] = DISABLE_BELOW
    """Running acceptance below which `threshold` stops for a while."""

    @model_validator(mode="after")
    def _no_contradictions(self) -> Self:
        if self.mode == "fixed" and self.window == 0:
            raise ValueError(f"mode fixed needs a window from 1 to {MAX_WINDOW}")
        if self.mode == "off" and self.window:
            raise ValueError(f"window={self.window} contradicts mode off")
        if self.disable_below > self.shrink_below:
            raise ValueError(f"disable_below={self.disable_below} is more than shrink_below={self.shrink_below}")
        return self

    @classmethod
    def parse(cls, wanted: str | Mapping[str, Any] | Speculation) -> Speculation:
        """Read `off`, `auto`, `auto:K`, `threshold`, `threshold:K` or `fixed:K`, or the fields by name.

        Raises:
            InvalidRequest: anything else, or K outside 1 to 64.
        """
        if isinstance(wanted, Speculation):
            return wanted
        if isinstance(wanted, Mapping):
            return cls(**wanted)
        head, colon, tail = wanted.partition(":")
        for mode in _MODES:
            if head == mode and (bool(colon) or mode != "fixed"):
                if not colon:
                    return cls(mode=mode)
                if mode != "off" and tail.isdecimal() and 1 <= int(tail) <= MAX_WINDOW:
                    return cls(mode=mode, window=int(tail))
        raise InvalidRequest(
            f"speculation={wanted!r} is not a mode; use off, auto, threshold or fixed:K with K from 1 to {MAX_WINDOW} "
            "(auto:K and threshold:K bound the window)"
        )

    def __str__(self) -> str:
        return f"{self.mode}:{self.window}" if self.window else self.mode


class Grammar(Checked):
    """What a text must look like: a JSON schema, a regular expression, or a grammar in Lark's notation.

    Raises:
        InvalidRequest: an unknown kind. Whether the source makes sense is found out when a request uses it.
    """

    kind: Literal["json_schema", "regex", "lark"]
    source: str

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any]) -> Grammar:
        """JSON that follows the schema."""
        return cls(kind="json_schema", source=json.dumps(schema))

    @classmethod
    def json_object(cls) -> Grammar:
        """Any JSON object."""
        return cls.json_schema({"type": "object"})


Objective = Literal["latency", "throughput"]
"""What `auto` makes fast: each request, or all of them together. The same for one request alone."""

Verification = Literal["coupled", "rejection", "block"]
"""How sampled drafts are verified (docs/how-it-works.md); greedy requests need no choice."""
