"""The policy against brute force, and its promise never to plan what it believes to be slower."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.control.policy import choose_windows, survival
from outrider.params import Objective

probabilities = st.lists(st.floats(0.0, 0.99), max_size=4)
batches = st.lists(probabilities, min_size=1, max_size=3)
# cost by total width, jagged like a real curve
objectives = st.sampled_from(["latency", "throughput"])
curves = st.lists(st.floats(0.5, 3.0), min_size=20, max_size=20)


def speed(
    survivals: Sequence[Sequence[float]], windows: Sequence[int], curve: Sequence[float], objective: str = "throughput"
) -> float:
    if objective == "latency":
        rows = zip(survivals, windows, strict=True)
        return 1.0 / (curve[sum(windows)] * sum(1.0 / (1.0 + sum(row[:window])) for row, window in rows))
    tokens = len(survivals) + sum(sum(row[:window]) for row, window in zip(survivals, windows, strict=True))
    return tokens / curve[sum(windows)]


@given(batches, curves, objectives)
@settings(max_examples=600)
def test_no_window_vector_is_faster(batch: list[list[float]], curve: list[float], objective: Objective) -> None:
    survivals = [survival(row) for row in batch]
    chosen = choose_windows(survivals, lambda windows: curve[sum(windows)], objective=objective)
    best = max(speed(survivals, w, curve, objective) for w in product(*(range(len(row) + 1) for row in survivals)))
    assert speed(survivals, chosen, curve, objective) == pytest.approx(best)


@given(batches, curves, st.floats(0.0, 0.5), objectives)
def test_a_plan_is_never_slower_than_plain_decoding(
    batch: list[list[float]], curve: list[float], margin: float, objective: Objective
) -> None:
    survivals = [survival(row) for row in batch]
    chosen = choose_windows(survivals, lambda windows: curve[sum(windows)], margin, objective)
    plain = speed(survivals, [0] * len(batch), curve, objective)
    gain = speed(survivals, chosen, curve, objective) / plain
    assert gain >= 1.0 - 1e-9
    assert not any(chosen) or gain > (1.0 + margin) * (1 - 1e-9)


def test_a_dear_width_is_stepped_over_to_a_cheap_one() -> None:
    """Nine tokens can be cheaper than seven."""
    curve = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 3.0, 3.0, 1.6, 9.0]
    assert choose_windows([survival([0.95] * 9)], lambda windows: curve[sum(windows)]) == [8]


def test_when_verification_is_dear_nothing_is_drafted() -> None:
    assert choose_windows([survival([0.5] * 4)], lambda windows: 1.0 + sum(windows)) == [0]


def test_a_low_acceptance_pays_when_the_pass_is_nearly_free() -> None:
    """The field's threshold of 0.3 would stop here."""
    assert choose_windows([[0.14]], lambda windows: 1.0 + 0.05 * sum(windows), margin=0.02) == [1]


def test_the_likelier_draft_of_a_batch_gets_the_tokens() -> None:
    survivals = [survival([0.95] * 4), survival([0.1] * 4)]
    assert choose_windows(survivals, lambda windows: 1.0 + 0.15 * sum(windows)) == [4, 0]


def test_latency_helps_two_where_throughput_helps_one() -> None:
    survivals = [survival([0.9] * 3), survival([0.7] * 3)]
    curve = [1.0, 1.0, 1.0, 9.0, 9.0, 9.0, 9.0]  # two draft tokens are free, a third is not
    assert choose_windows(survivals, lambda windows: curve[sum(windows)], objective="throughput") == [2, 0]
    assert choose_windows(survivals, lambda windows: curve[sum(windows)], objective="latency") == [1, 1]


def test_survival_is_the_running_product() -> None:
    assert survival([0.5, 0.5, 1.0]) == [0.5, 0.25, 0.25]
    assert survival([]) == []
