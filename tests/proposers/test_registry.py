"""Proposers by name: ours, other packages', and clear refusals."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from outrider.errors import InvalidRequest
from outrider.proposers import DEFAULT_PROPOSERS, PromptLookup, Setup, make_proposers, registry
from support import RandomProposer

SETUP = Setup("toy", vocabulary=64, context_length=128)


class Brought(RandomProposer):
    """What another package would bring."""

    name = "brought"

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup.vocabulary)


def fails(setup: Setup) -> Brought:
    raise RuntimeError("no weights")


@pytest.fixture(autouse=True)
def _entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(group: str) -> Sequence[Any]:
        assert group == "outrider.proposers"
        return [
            EntryPoint(name, f"test_registry:{value}", group)
            for name, value in (("brought", "Brought"), ("bad", "fails"))
        ]

    monkeypatch.setattr(registry, "entry_points", found)


def test_the_defaults_are_there_in_their_order() -> None:
    assert [proposer.name for proposer in make_proposers(DEFAULT_PROPOSERS, SETUP)] == [
        "prediction",
        "suffix",
        "lookup",
    ]


def test_another_packages_proposer_is_loaded_by_its_name() -> None:
    lookup, brought = make_proposers([PromptLookup(2), "brought"], SETUP)
    assert (lookup.name, brought.name) == ("lookup", "brought")
    assert isinstance(brought, RandomProposer)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["lokup"], "'lokup' is not known; there are bad, brought, lookup, prediction, suffix. Did you mean lookup"),
        (["lookup", "lookup"], "'lookup' is named twice"),
        (["bad"], "'bad' of test_registry:fails cannot be made: RuntimeError"),
    ],
)
def test_refusals_say_what_would_be_right(names: list[str], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        make_proposers(names, SETUP)
