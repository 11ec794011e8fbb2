"""The field's rule of thumb: running acceptance below 0.5 shrinks the window, below 0.3 disables it for a while.

It knows nothing of cost, so it stops where an acceptance of 0.14 would have paid and goes on where 0.6 does not.
"""

from __future__ import annotations

from dataclasses import dataclass

SHRINK_BELOW = 0.5
DISABLE_BELOW = 0.3
DISABLED_STEPS = 32
_SMOOTHING = 0.15
_START = 0.6


@dataclass(slots=True)
class ThresholdRule:
    """The state of one request."""

    largest: int
    window: int
    running: float = _START
    """Accepted of drafted, smoothed over drafts."""
    disabled: int = 0
    """Steps without speculation that are left."""

    @classmethod
    def start(cls, largest: int) -> ThresholdRule:
        """A request that has not drafted yet, with this largest window."""
        return cls(largest, largest)

    def next_window(self) -> int:
        """The window of this step; counts down while disabled."""
        if self.disabled == 0:
            return self.window
        self.disabled -= 1
        if self.disabled == 0:
            self.running, self.window = _START, 1
        return 0

    def observe(self, drafted: int, accepted: int) -> None:
        """Learn from a verified draft."""
        self.running += _SMOOTHING * (accepted / drafted - self.running)
        if self.running < DISABLE_BELOW:
            self.disabled = DISABLED_STEPS
        elif self.running < SHRINK_BELOW:
            self.window = max(1, self.window - 1)
        else:
            self.window = min(self.largest, self.window + 1)
