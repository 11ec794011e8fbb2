"""The field's rule of thumb: running acceptance below 0.5 shrinks the window, below 0.3 disables it for a while.

It knows nothing of cost, so it stops where an acceptance of 0.14 would have paid and goes on where 0.6 does not.
"""

from __future__ import annotations

from dataclasses import dataclass

from outrider.params import DISABLE_BELOW, SHRINK_BELOW

DISABLED_STEPS = 32
_SMOOTHING = 0.15
_ABOVE = 0.1


@dataclass(slots=True)
class ThresholdRule:
    """The state of one request."""

    largest: int
    shrink_below: float = SHRINK_BELOW
    disable_below: float = DISABLE_BELOW
    window: int = 0
    running: float = 1.0
    """Accepted of drafted, smoothed over drafts."""
    disabled: int = 0
    """Steps without speculation that are left."""
    shrinks: int = 0
    disablings: int = 0

    def __post_init__(self) -> None:
        self.window = self.largest
        self.running = self._start()

    def _start(self) -> float:
        return min(1.0, self.shrink_below + _ABOVE)

    def next_window(self) -> int:
        """The window of this step; counts down while disabled."""
        if self.disabled == 0:
            return self.window
        self.disabled -= 1
        if self.disabled == 0:
            self.running, self.window = self._start(), 1
        return 0

    def observe(self, drafted: int, accepted: int) -> None:
        """Learn from a verified draft."""
        self.running += _SMOOTHING * (accepted / drafted - self.running)
        if self.running < self.disable_below:
            self.disabled = DISABLED_STEPS
            self.disablings += 1
        elif self.running < self.shrink_below:
            self.shrinks += self.window > 1
            self.window = max(1, self.window - 1)
        else:
            self.window = min(self.largest, self.window + 1)
