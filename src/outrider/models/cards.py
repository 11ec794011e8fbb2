"""What is known of a draft that was made for a model: how it was made and what it does."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class DraftCard(BaseModel):
    """Written by `outrider draft train`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    target: str
    """Name of the model that it drafts for."""
    target_vocabulary: int
    steps: int
    """Tokens in a row that it is measured over; a head was trained to draft so many."""
    parameters: int
    positions: int
    """Positions of the target's text that it was trained on."""
    passes: float
    """How often it saw each."""
    greedy_share: float
    traffic: int = 0
    """Prompts of real traffic among what it was trained on."""
    minutes: float
    """Minutes of making it, collecting included."""
    device: str
    seed: int
    acceptance: tuple[float, ...]
    """Of greedy held-out answers, served in windows of `steps`: acceptance of draft token i given those before it."""
    tokens_per_pass: float
    """Of the same."""
    command: str
    licence: str


class HeadCard(DraftCard):
    """`head.json`."""

    points: tuple[int, ...]
    """Points of the target's residual stream that its states are read at, the last norm's output aside."""
    width: int
    """Numbers in one hidden state of the target."""


class PrunedCard(DraftCard):
    """`draft.json`."""

    layers: tuple[int, ...]
    """Those of the target's layers that it has."""
