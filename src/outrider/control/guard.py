"""Fallback and recovery: drafts that do not pay stop, for one request and proposer, and are tried again later.

Two things count. Drafts not worth verifying: after a dozen in a row the proposer is no longer asked; after fewer
where they are dear, or in a batch, which waits for them all. And realised loss: each verified draft brings what was
accepted and costs what it made the pass dearer, both in plain tokens; the account of it starts at zero, keeps little
credit for good times, and when it runs low the window is halved, when it is empty speculation stops. So however wrong
the estimates are, a request loses a few tokens' time before each ever longer sleep. Until a draft has paid windows
are short.

While it sleeps nothing is proposed at all. It wakes for a few steps in which drafts are proposed and compared with what
is said, verified only if they promise to pay; each wake in vain doubles the sleep.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

PATIENCE = 12
"""Drafts not worth verifying before the proposer falls asleep."""
DEAR = 0.06
"""Share of a plain step above which a draft in vain counts for more than one, in proportion."""
LOOK = 4
"""Drafts that it makes after a sleep."""
FIRST_SLEEP = 8
LONGEST_SLEEP = 32
"""In steps; with LOOK it bounds how late a text that became predictable is noticed."""
LOSS = 3.0
"""Realised loss, in plain tokens, at which speculation stops; at half of it the window is halved."""
FIRST_WINDOW = 5
"""Largest window until the first draft has paid: nothing is known of the request yet."""
CREDIT = 2.0
"""Most of a gain that is set against later losses."""
PROBING = 0.01
"""Most of the time that may go into drafts that are not worth verifying."""


@dataclass(slots=True)
class Guard:
    """The state of one request and proposer."""

    patience: float = PATIENCE
    """Drafts not worth verifying that are left until it falls asleep."""
    asleep: int = 0
    """Steps of sleep that are left."""
    next_sleep: int = FIRST_SLEEP
    account: float = 0.0
    """Realised gain in plain tokens, bounded above."""
    cap: int | None = FIRST_WINDOW
    """Largest window at first, and while the account is low."""
    unpromising: int = 0
    """Times that it fell asleep because no draft was worth verifying."""
    losing: int = 0
    """Times that it fell asleep because verified drafts cost more than they brought."""
    shrinks: int = 0
    """Times that the window was halved."""
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

    def passed_over(self, cost: float = 0.0, sequences: int = 1) -> None:
        """Learn that a draft was not worth verifying.

        Args:
            cost: what making it cost, as a share of a plain step.
            sequences: in the batch, all of which waited for it.
        """
        self.patience -= math.sqrt(sequences) * max(1.0, cost / DEAR)
        if self.patience <= 0:
            self.unpromising += 1
            self._sleep(cost)

    def verified(self, window: int, gain: float, cost: float = 0.0) -> None:
        """Learn what a verified draft of `window` tokens brought, less what it cost, in plain tokens."""
        self.patience = PATIENCE
        self.account = min(CREDIT, self.account + gain)
        if self.account >= 0.0:
            self.cap = None
            if gain > 0.0 and self.next_sleep > FIRST_SLEEP:
                self.recoveries += 1
                self.next_sleep = FIRST_SLEEP
        elif self.account <= -LOSS:
            self.losing += 1
            self.account = -LOSS / 2
            self._sleep(cost)
        elif self.account <= -LOSS / 2 and window > 1 and gain < 0.0:
            self.cap = window // 2
            self.shrinks += 1

    def vindicated(self) -> None:
        """Learn that its draft, which was not the one verified, was as right as the one that was, and that one paid."""
        if self.account >= 0.0:
            self.cap = None

    def _sleep(self, cost: float) -> None:
        longest = max(LONGEST_SLEEP, int(LOOK * cost / PROBING))
        self.asleep = max(self.next_sleep, min(longest, int(LOOK * cost / PROBING)))
        self.next_sleep = min(2 * self.next_sleep, longest)
