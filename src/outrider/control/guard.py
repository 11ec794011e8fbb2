"""Fallback and recovery: a request whose drafts do not pay stops drafting, and is tried again later.

While it sleeps nothing is proposed for it at all. It wakes for a few steps in which drafts are proposed and compared
with what is said, verified only if they promise to pay; each wake in vain doubles the sleep.
"""

from __future__ import annotations

from dataclasses import dataclass

PATIENCE = 12
"""Steps without a window that pays before a request falls asleep."""
LOOK = 4
"""Steps that it stays awake after a sleep."""
FIRST_SLEEP = 8
LONGEST_SLEEP = 32
"""In steps; with LOOK it bounds how late a text that became predictable is noticed."""


@dataclass(slots=True)
class Guard:
    """The state of one request."""

    patience: int = PATIENCE
    asleep: int = 0
    """Steps of sleep that are left."""
    next_sleep: int = FIRST_SLEEP
    falls: int = 0
    """Times that it fell asleep."""
    recoveries: int = 0
    """Times that drafts paid again after a sleep."""

    def awake(self) -> bool:
        """Whether to draft in this step; counts down the sleep."""
        if self.asleep == 0:
            return True
        self.asleep -= 1
        if self.asleep == 0:
            self.patience = LOOK
        return False

    def chosen(self, window: int) -> None:
        """Learn which window the policy chose for a step in which the request was awake."""
        if window > 0:
            if self.next_sleep > FIRST_SLEEP:
                self.recoveries += 1
            self.patience = PATIENCE
            self.next_sleep = FIRST_SLEEP
            return
        self.patience -= 1
        if self.patience <= 0:
            self.asleep = self.next_sleep
            self.next_sleep = min(2 * self.next_sleep, LONGEST_SLEEP)
            self.falls += 1
