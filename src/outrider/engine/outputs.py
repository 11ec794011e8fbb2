"""What the engine says: chunks while a request runs, a generation when it is done."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from outrider.verify import TokenLogprobs

FinishReason = Literal["stop", "length", "cancelled", "deadline", "error"]


@dataclass(frozen=True, slots=True)
class EmittedToken:
    """One token of the output."""

    id: int
    text: str
    """What it released: may be empty, may include characters of tokens before it."""
    accepted: bool
    """Whether a draft proposed it."""
    logprobs: TokenLogprobs | None = None


@dataclass(slots=True)
class Usage:
    """Counts of one completion. Draft tokens after a stop were never judged and are in none of them."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache."""
    completion_tokens: int = 0
    accepted: int = 0
    """Draft tokens that were emitted."""
    rejected: int = 0
    """Draft tokens that the target did not say."""
    accepted_prediction: int = 0
    """Of the accepted ones, those that the client's own prediction foretold, whichever proposer drafted them."""
    rejected_prediction: int = 0
    passes: int = 0
    """Target passes that emitted a token after the first one."""

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted of drafted tokens; None when nothing was drafted."""
        drafted = self.accepted + self.rejected
        return self.accepted / drafted if drafted else None

    @property
    def acceptance_length(self) -> float | None:
        """Tokens emitted per target pass, bonus included, after stops; None before the second token."""
        return (self.completion_tokens - 1) / self.passes if self.passes else None


@dataclass(slots=True)
class Timings:
    """Moments of one completion on the engine's clock, in seconds."""

    arrived: float
    admitted: float | None = None
    first_token: float | None = None
    last_token: float | None = None

    @property
    def queued(self) -> float | None:
        """Seconds from arrival to the first pass that it was in."""
        return None if self.admitted is None else self.admitted - self.arrived

    @property
    def ttft(self) -> float | None:
        """Seconds from arrival to the first token."""
        return None if self.first_token is None else self.first_token - self.arrived

    @property
    def decode(self) -> float | None:
        """Seconds from the first token to the last."""
        if self.first_token is None or self.last_token is None:
            return None
        return self.last_token - self.first_token


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one step added to one completion."""

    request: str
    index: int
    tokens: tuple[EmittedToken, ...]
    text: str
    finish_reason: FinishReason | None = None
    error: str | None = None
    usage: Usage | None = None
    """With the finish reason only."""
    timings: Timings | None = None
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    """With the first chunk, when the prompt is echoed with log-probabilities; the first token has none."""


@dataclass(slots=True)
class Completion:
    """One finished completion."""

    index: int
    text: str = ""
    tokens: list[EmittedToken] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    error: str | None = None
    usage: Usage = field(default_factory=Usage)
    timings: Timings = field(default_factory=lambda: Timings(0.0))
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None

    @property
    def token_ids(self) -> list[int]:
        """Ids of the output, the stop token included."""
        return [token.id for token in self.tokens]

    @property
    def logprobs(self) -> list[TokenLogprobs | None]:
        """Log-probabilities of the output's tokens, where they were asked for."""
        return [token.logprobs for token in self.tokens]

    def add(self, chunk: Chunk) -> None:
        """Take in the next chunk."""
        self.text += chunk.text
        self.tokens += chunk.tokens
        if chunk.prompt_logprobs is not None:
            self.prompt_logprobs = chunk.prompt_logprobs
        if chunk.finish_reason is not None:
            self.finish_reason = chunk.finish_reason
            self.error = chunk.error
        if chunk.usage is not None:
            self.usage = chunk.usage
        if chunk.timings is not None:
            self.timings = chunk.timings


@dataclass(slots=True)
class Generation:
    """Everything that a request gave: n completions, and the seed that gives them again."""

    request: str
    prompt_ids: list[int]
    seed: int
    completions: list[Completion]

    @property
    def text(self) -> str:
        """Text of the first completion."""
        return self.completions[0].text

    @property
    def token_ids(self) -> list[int]:
        """Output token ids of the first completion."""
        return self.completions[0].token_ids

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the first completion ended."""
        return self.completions[0].finish_reason

    @property
    def usage(self) -> Usage:
        """Counts of the first completion."""
        return self.completions[0].usage
