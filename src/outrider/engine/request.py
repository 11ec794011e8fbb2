"""A request and its sequences: what was asked, and how far each completion has come."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from outrider.engine.kv import BlockTable
from outrider.engine.outputs import Chunk, EmittedToken, FinishReason, Timings, Usage
from outrider.engine.text import TextCodec, TextStream
from outrider.params import SamplingParams, Speculation, Verification
from outrider.proposers import Context
from outrider.verify import Constraint, Sampler, TokenLogprobs

Sink = Callable[[Chunk], None]
"""Takes the chunks of one request, on the engine's thread; must not block."""


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked. Checked by `EngineCore.check` before it is queued."""

    id: str
    prompt: tuple[int, ...]
    params: SamplingParams
    prompt_text: str | None = None
    """The prompt as text, for `echo`; decoded from the ids where it is None."""
    speculation: Speculation | None = None
    """None leaves it to the engine's own mode."""
    prediction: tuple[int, ...] = ()
    """Tokens that the client expects in the answer."""
    tenant: str | None = ""
    """Whose request it is; see `Context.tenant`."""
    grammar: Callable[[], Constraint] | None = None
    """Makes the grammar's state for each completion."""
    timeout: float | None = None
    """Seconds from arrival after which it is ended with what it has."""
    seed: int = field(default_factory=lambda: secrets.randbits(63))
    """What draws its tokens; `params.seed` where given."""

    def __post_init__(self) -> None:
        if self.params.seed is not None:
            object.__setattr__(self, "seed", self.params.seed)


class Sequence:
    """One completion on its way. `tokens[:table.committed]` are in the KV cache."""

    def __init__(
        self, group: Group, index: int, codec: TextCodec, sampler: Sampler, verification: Verification
    ) -> None:
        request = group.request
        self.group = group
        self.index = index
        self.key = f"{request.id}/{index}"
        self.tokens: list[int] = list(request.prompt)
        self.table: BlockTable | None = None
        self.sampler = sampler
        self.text = TextStream(codec, request.params.stop, skip_special=request.params.skip_special_tokens)
        self.usage = Usage(prompt_tokens=len(request.prompt))
        self.timings = Timings(group.arrived)
        self.finish_reason: FinishReason | None = None
        self.echoed = False
        """Whether the prompt's own text was sent, for `echo`."""
        self.context = Context(
            self.key, self.tokens, len(request.prompt), request.prediction, request.tenant, sampler, verification
        )

    @property
    def params(self) -> SamplingParams:
        return self.group.request.params

    @property
    def emitted(self) -> int:
        """Tokens of output so far."""
        return len(self.tokens) - len(self.group.request.prompt)

    @property
    def committed(self) -> int:
        """Tokens in the KV cache."""
        return self.table.committed if self.table is not None else 0

    @property
    def pending(self) -> int:
        """Tokens that still have to go through the model."""
        return len(self.tokens) - self.committed

    @property
    def decoding(self) -> bool:
        """Whether only the last emitted token has to go through the model."""
        return self.emitted > 0 and self.pending == 1

    def room(self, context_length: int) -> int:
        """Tokens that may still be emitted."""
        room = context_length - len(self.tokens)
        most = self.params.max_tokens
        return room if most is None else min(room, most - self.emitted)


@dataclass(slots=True)
class Group:
    """A request's n sequences; only the first exists until the prompt has gone through the model."""

    request: Request
    sink: Sink
    arrived: float
    end_ids: frozenset[int]
    """Tokens that end the text for this request."""
    sequences: list[Sequence] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] | None = None

    @property
    def deadline(self) -> float | None:
        timeout = self.request.timeout
        return None if timeout is None else self.arrived + timeout

    @property
    def scores_prompt(self) -> bool:
        """Whether the prompt's own log-probabilities are wanted."""
        return self.request.params.echo and self.request.params.logprobs is not None

    def emit(
        self,
        sequence: Sequence,
        tokens: tuple[EmittedToken, ...],
        text: str,
        prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None,
        error: str | None = None,
    ) -> None:
        """Hand a chunk to whoever waits for it."""
        done = sequence.finish_reason is not None
        self.sink(
            Chunk(
                request=self.request.id,
                index=sequence.index,
                tokens=tokens,
                text=text,
                finish_reason=sequence.finish_reason,
                error=error,
                usage=sequence.usage if done else None,
                timings=sequence.timings if done else None,
                prompt_logprobs=prompt_logprobs,
            )
        )
