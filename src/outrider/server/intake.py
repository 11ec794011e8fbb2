"""From a request in OpenAI's words to one in the engine's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from outrider.api import Engine, Options
from outrider.params import Grammar, SamplingParams
from outrider.server.answers import Answers, Kind
from outrider.server.config import ServerConfig
from outrider.server.errors import Refusal
from outrider.server.schema import ChatRequest, CompletionRequest, SpeculationWish
from outrider.server.tools import ToolPlan, plan_tools, turns_of

_COMPLETION_TOKENS = 16
"""What OpenAI's text completions generate when nobody says."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as the engine takes it."""

    kind: Kind
    prompt: list[int]
    params: SamplingParams
    options: Options
    plan: ToolPlan | None

    def answers(self, engine: Engine, request: str) -> Answers:
        """What writes the answers to it."""
        logprobs = self.params.logprobs is not None
        return Answers(self.kind, request, engine.manifest.name, engine.tokenizer, logprobs=logprobs, plan=self.plan)


def read(engine: Engine, config: ServerConfig, body: ChatRequest | CompletionRequest, tenant: str) -> Asked:
    """Translate a request. Takes time for a long prompt: call it from a thread of its own.

    Raises:
        Refusal: the model is another one, or a value cannot be honoured.
        InvalidRequest: a value cannot be honoured.
    """
    check_model(engine, body.model)
    plan = None
    grammar: Grammar | None = None
    if isinstance(body, ChatRequest):
        plan = plan_tools(body)
        prompt = engine.encode(turns_of(body.messages, plan))
        form = body.response_format
        grammar = plan.grammar if plan is not None else form.grammar if form is not None else None
        most = body.max_completion_tokens or body.max_tokens or config.default_max_tokens
        logprobs = (body.top_logprobs or 0) if body.logprobs else None
        params = _params(engine, config, body, prompt, most, logprobs)
    else:
        prompt = body.prompt if isinstance(body.prompt, list) else engine.encode(body.prompt)
        most = body.max_tokens or _COMPLETION_TOKENS
        params = _params(engine, config, body, prompt, most, body.logprobs, echo=body.echo)
    wish = body.speculation
    options = Options(
        speculation=wish.fields() if isinstance(wish, SpeculationWish) else wish,
        prediction=body.prediction.text() if body.prediction is not None else None,
        grammar=engine.compile(grammar) if grammar is not None else None,
        tenant=tenant if body.remember else None,
        timeout=min(body.timeout or config.timeout, config.timeout),
    )
    return Asked("chat" if isinstance(body, ChatRequest) else "text", prompt, params, options, plan)


def check_model(engine: Engine, name: str) -> None:
    """Refuse a name that is not the served model's."""
    served = engine.manifest.name
    if name != served:
        raise Refusal(
            404, f"the model {name!r} is not served here; this is {served!r}", param="model", code="model_not_found"
        )


def _params(
    engine: Engine,
    config: ServerConfig,
    body: ChatRequest | CompletionRequest,
    prompt: list[int],
    max_tokens: int,
    logprobs: int | None,
    *,
    echo: bool = False,
) -> SamplingParams:
    if (body.n or 1) > config.max_n:
        raise Refusal(400, f"n={body.n} is more than the {config.max_n} that this server allows", param="n")
    try:
        bias = {int(token): value for token, value in (body.logit_bias or {}).items()}
    except ValueError:
        raise Refusal(400, "logit_bias: keys must be token ids", param="logit_bias") from None
    room = max(1, engine.info.context_length - len(prompt))
    fields: dict[str, Any] = {
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
        "min_p": body.min_p,
        "repetition_penalty": body.repetition_penalty,
        "presence_penalty": body.presence_penalty,
        "frequency_penalty": body.frequency_penalty,
        "logit_bias": bias or None,
        "seed": body.seed,
        "n": body.n,
        "max_tokens": min(max_tokens, room),
        "min_tokens": body.min_tokens,
        "stop": body.stop,
        "stop_token_ids": body.stop_token_ids,
        "logprobs": logprobs,
    }
    return SamplingParams(
        ignore_eos=body.ignore_eos,
        skip_special_tokens=body.skip_special_tokens,
        echo=echo,
        **{name: value for name, value in fields.items() if value is not None},
    )
