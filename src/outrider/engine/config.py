"""The engine's settings, validated once."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator

from outrider.params import Checked, Speculation, Verification


class EngineConfig(Checked):
    """How an engine runs requests.

    Raises:
        InvalidRequest: a value out of range or an unknown name.
    """

    speculation: str = "auto"
    """Mode of requests that do not choose: `off`, `auto` or `fixed:K`."""
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

    @field_validator("speculation")
    @classmethod
    def _is_a_mode(cls, value: str) -> str:
        Speculation.parse(value)
        return value
