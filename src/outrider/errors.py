"""The one family of errors that people see: what was wrong, with the value, and what would be right."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class OutriderError(Exception):
    """Base of every error meant for people; the message is one line and names the remedy."""


class InvalidRequest(OutriderError, ValueError):
    """A request or a setting that cannot be honoured."""


class ModelError(OutriderError):
    """A model that cannot be found, fetched, verified or loaded."""


class QueueFull(OutriderError):
    """The bounded queue refuses a request; try again later."""


class EngineClosed(OutriderError):
    """The engine was closed, or its thread died, while the request was open."""


def near_misses(word: str, known: Iterable[str]) -> str:
    """Return ' Did you mean ...?' for the known words close to `word`, or an empty string."""
    close = get_close_matches(word, sorted(set(known)), n=3, cutoff=0.5)
    return f" Did you mean {' or '.join(close)}?" if close else ""
