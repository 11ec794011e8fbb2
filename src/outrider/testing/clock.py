"""A clock that tests move by hand."""

from __future__ import annotations


class ManualClock:
    """Seconds that pass only when `advance` says so."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds
