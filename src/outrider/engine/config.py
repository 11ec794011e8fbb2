"""The engine's settings, validated once."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from outrider.params import DISABLE_BELOW, SHRINK_BELOW, Checked, Objective, Speculation, Verification


class EngineConfig(Checked):
    """How an engine runs requests.

    Raises:
        InvalidRequest: a value out of range or an unknown name.
    """

    speculation: str = "auto"
    """Mode of requests that do not choose: `off`, `auto`, `threshold` or `fixed:K`."""
    shrink_below: float = SHRINK_BELOW
    """Running acceptance below which `threshold` makes the window smaller, for requests that do not choose."""
    disable_below: float = DISABLE_BELOW
    """Running acceptance below which `threshold` stops for a while, for requests that do not choose."""
    objective: Objective = "throughput"
    """What `auto` makes fast in a batch: `latency`, each request, or `throughput`, all of them together."""
    verification: Verification = "coupled"
    """How sampled drafts are verified; only `coupled` gives the same text with speculation on or off."""
    max_running: Annotated[int, Field(ge=1, le=4096)] = 16
    """Most sequences in a batch."""
    max_queue: Annotated[int, Field(ge=0)] = 256
    """Most requests that wait; one more is refused."""
    chunk_tokens: Annotated[int, Field(ge=1)] = 256
    """Most prompt tokens in a pass when nobody is decoding."""
    stretch: Annotated[float, Field(ge=1.0)] = 2.5
    """How many times longer a pass may take for those who decode because others' prompts are in it."""
    prefix_caching: bool = True
    """Keep the keys and values of finished prefixes for requests that start the same."""
    trace_steps: Annotated[int, Field(ge=0)] = 4096
    """Last steps that are kept one by one, for `trace`; each takes some 300 bytes for every request in it."""

    @property
    def mode(self) -> Speculation:
        """How requests that do not choose speculate."""
        return self.complete(Speculation.parse(self.speculation))

    def complete(self, wanted: Speculation) -> Speculation:
        """A request's wish with the engine's thresholds where it names none."""
        own = {"shrink_below": self.shrink_below, "disable_below": self.disable_below}
        chosen = {**own, **wanted.model_dump(include=wanted.model_fields_set)}
        return Speculation(**{**wanted.model_dump(), **chosen})

    @model_validator(mode="after")
    def _is_a_mode(self) -> Self:
        _ = self.mode
        return self
