"""Proposers by name: those that come with Outrider, and those that other packages bring."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points

from outrider.errors import InvalidRequest, near_misses
from outrider.proposers.base import Proposer
from outrider.proposers.lookup import PromptLookup
from outrider.proposers.prediction import Prediction
from outrider.proposers.suffix import Suffix, SuffixStore

GROUP = "outrider.proposers"
"""Entry points of this group name factories: callables that take a `Setup` and return a `Proposer`."""
DEFAULT_PROPOSERS = ("prediction", "suffix", "lookup")


@dataclass(frozen=True, slots=True)
class Setup:
    """What a proposer is made for."""

    model: str
    """Name of the target model."""
    vocabulary: int
    """Tokens of the target; a draft token must be below it."""
    context_length: int
    store: SuffixStore | None = None
    """Earlier answers, where they are kept."""


Factory = Callable[[Setup], Proposer]

_BUILT_IN: dict[str, Factory] = {
    "lookup": lambda _: PromptLookup(),
    "prediction": lambda _: Prediction(),
    "suffix": lambda setup: Suffix(setup.store),
}


def make_proposers(wanted: Sequence[str | Proposer], setup: Setup) -> list[Proposer]:
    """Make the proposers of these names; those that are made already stay as they are.

    Raises:
        InvalidRequest: nobody brings a proposer of this name, one is named twice, or its package fails.
    """
    made = [_make(each, setup) if isinstance(each, str) else each for each in wanted]
    names = [proposer.name for proposer in made]
    for name in names:
        if names.count(name) > 1:
            raise InvalidRequest(f"proposer {name!r} is named twice; name each once")
    return made


def _make(name: str, setup: Setup) -> Proposer:
    factory = _BUILT_IN.get(name)
    if factory is not None:
        return factory(setup)
    brought = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name not in brought:
        known = sorted({*_BUILT_IN, *brought})
        raise InvalidRequest(f"proposer {name!r} is not known; there are {', '.join(known)}.{near_misses(name, known)}")
    try:
        proposer: Proposer = brought[name].load()(setup)
    except Exception as error:
        raise InvalidRequest(f"proposer {name!r} of {brought[name].value} cannot be made: {error!r}") from error
    return proposer
