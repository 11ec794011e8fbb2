"""The simplest controller: the window that was asked for, step after step."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.control.base import Candidate

AUTO_WINDOW = 4
"""What `auto` uses: five tokens in a pass cost little more than one on every machine measured."""


class FixedWindow:
    """`off` gives 0, `fixed:K` gives K, `auto` gives 4, each cut to what the request has room for."""

    def windows(self, candidates: Sequence[Candidate]) -> list[int]:
        """See `Controller.windows`."""
        asked = {"off": 0, "auto": AUTO_WINDOW}
        return [min(c.limit, asked.get(c.mode.mode, c.mode.window)) for c in candidates]

    def observe(self, request: str, drafted: int, accepted: int) -> None:
        """A fixed window learns nothing."""

    def release(self, request: str) -> None:
        """A fixed window keeps nothing."""
