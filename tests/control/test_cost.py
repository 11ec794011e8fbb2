"""The cost of passes: by width, corrected by every pass, deaf to outliers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outrider.control import AutoController, Candidate, CostModel, Load, calibrate, recalled, save_cost
from outrider.params import Speculation
from outrider.proposers import Draft, Proposal
from outrider.runners import Logits, Segment
from outrider.testing import ManualClock, ScriptedRunner

CURVE = {1: 20.0, 2: 22.0, 4: 23.0, 8: 30.0, 9: 26.0, 16: 40.0}


def test_measured_widths_are_themselves_and_others_lie_between() -> None:
    model = CostModel(CURVE)
    assert [model.seconds(Load(w, 0, 1)) for w in (1, 8, 9)] == [20.0, 30.0, 26.0]
    assert model.seconds(Load(3, 0, 1)) == pytest.approx(22.5)
    assert model.seconds(Load(12, 0, 1)) == pytest.approx(26.0 + 3 / 7 * 14.0)


def test_beyond_the_last_width_the_slope_goes_on() -> None:
    model = CostModel(CURVE)
    assert model.seconds(Load(28, 0, 1)) == pytest.approx(40.0 + 12 * (40.0 - 23.0) / 12)
    assert CostModel({1: 5.0}).seconds(Load(9, 0, 1)) == 5.0


def test_attention_adds_to_it() -> None:
    assert CostModel({1: 10.0}, attention=0.01).seconds(Load(1, 500, 1)) == 15.0


def test_a_slower_machine_changes_all_costs_alike() -> None:
    model = CostModel(CURVE)
    for _ in range(100):
        model.observe(Load(1, 0, 1), 30.0)
    assert model.seconds(Load(1, 0, 1)) == pytest.approx(30.0, rel=0.01)
    # most of it is taken for the machine's speed, so the ratio that decides on windows moves far less
    assert model.seconds(Load(9, 0, 1)) / model.seconds(Load(1, 0, 1)) == pytest.approx(1.3, rel=0.15)


def test_a_width_that_is_dearer_than_calibrated_is_found_out() -> None:
    model = CostModel(CURVE)
    for _ in range(300):
        model.observe(Load(1, 0, 1), 20.0)
        for _ in range(3):
            model.observe(Load(4, 0, 1), 46.0)
    assert model.seconds(Load(4, 0, 1)) / model.seconds(Load(1, 0, 1)) == pytest.approx(2.3, rel=0.1)


@pytest.mark.parametrize("sequences", [1, 4])
def test_going_from_one_kind_of_pass_to_the_other_costs_both_ways(sequences: int) -> None:
    model = CostModel(CURVE)
    plain, wide = Load(sequences, 0, sequences), Load(sequences + 3, 0, sequences)
    assert model.entry() == 0.0
    for _ in range(60):
        model.observe(Load(1, 0, 1), 20.0)
        model.observe(Load(4, 0, 1), 33.0)
        model.observe(Load(4, 0, 1), 23.0)
        model.observe(Load(1, 0, 1), 26.0)
    for _ in range(300):
        for number in range(5):
            model.observe(plain, 20.0 if number else 26.0)
        for number in range(3):
            model.observe(wide, 23.0 if number else 33.0)
        assert model.entry() == 0.0, "it is in already"
    assert model.seconds(wide) == pytest.approx(23.0, rel=0.05)
    assert model.seconds(plain) == pytest.approx(20.0, rel=0.05)
    model.observe(plain, 26.0)
    assert model.entry() == pytest.approx(16.0 / 3, rel=0.2)
    assert model.seconds(wide) == pytest.approx(23.0, rel=0.05)
    assert CostModel.from_json(model.as_json()).seconds(wide) == pytest.approx(model.seconds(wide))


def test_drafts_that_do_not_pay_for_the_way_there_and_back_are_not_verified() -> None:
    def windows(switch: float) -> list[int]:
        cost = CostModel({1: 20.0, 2: 21.0, 3: 22.0}, switch=switch, back=switch)
        controller = AutoController(cost)
        controller.observe_pass(Load(1, 10, 1), 20.0)
        asked = [Candidate("r", Speculation(mode="auto"), 8, 10)]
        proposals = [[Proposal("lookup", Draft([5], [0.5]))]]
        return [choice.window for choice in controller.choose(asked, proposals, Load(1, 10, 1))]

    assert windows(0.0) == [1]
    assert windows(12.0) == [0]


def test_a_batch_that_just_decodes_has_its_own_cost() -> None:
    model = CostModel(CURVE, plain={4: 25.0, 8: 28.0}, mixed={4: [(4, 2.0), (16, 8.0)], 8: [(4, 6.0), (16, 18.0)]})
    assert model.seconds(Load(8, 0, 8)) == 28.0
    assert model.seconds(Load(12, 0, 8)) == pytest.approx(34.0)
    assert model.seconds(Load(24, 0, 8)) == pytest.approx(46.0)
    assert model.seconds(Load(6, 0, 6)) == pytest.approx(26.5)
    assert model.seconds(Load(10, 0, 6)) == pytest.approx(30.5)
    assert model.seconds(Load(8, 0, 4)) == pytest.approx(27.0)
    assert CostModel(CURVE).seconds(Load(8, 0, 8)) == 30.0


def test_what_drafts_cost_a_batch_is_found_out() -> None:
    """Calibration saw no difference; the passes do."""
    model = CostModel(CURVE, plain={8: 30.0}, mixed={8: [(4, 0.0), (16, 2.0)]})
    for _ in range(200):
        model.observe(Load(8, 0, 8), 30.0)
        model.observe(Load(10, 0, 8), 45.0)
        model.observe(Load(20, 0, 8), 60.0)
    plain = model.seconds(Load(8, 0, 8))
    assert model.seconds(Load(10, 0, 8)) / plain == pytest.approx(1.5, rel=0.1)
    assert model.seconds(Load(15, 0, 8)) / plain == pytest.approx(1.75, rel=0.1)
    assert model.seconds(Load(20, 0, 8)) / plain == pytest.approx(2.0, rel=0.1)


def test_a_saved_model_is_what_was_known() -> None:
    model = CostModel(CURVE, 1e-3, {8: 30.0}, {8: [(4, 1.0), (16, 5.0)]})
    for _ in range(50):
        model.observe(Load(8, 800, 8), 40.0)
        model.observe(Load(12, 1200, 8), 60.0)
        model.observe(Load(4, 400, 1), 30.0)
    again = CostModel.from_json(json.loads(json.dumps(model.as_json())))
    for load in (Load(1, 10, 1), Load(9, 900, 1), Load(8, 800, 8), Load(12, 1200, 8), Load(20, 2000, 8)):
        assert again.seconds(load) == pytest.approx(model.seconds(load))


def test_a_stall_hardly_matters() -> None:
    model = CostModel(CURVE)
    model.observe(Load(4, 0, 1), 5_000.0)
    assert model.seconds(Load(4, 0, 1)) < 23.0 * 1.07


class TimedRunner(ScriptedRunner):
    """Takes the time that its formula says."""

    def __init__(
        self,
        clock: ManualClock,
        context_length: int = 4096,
        num_blocks: int = 64,
        factors: tuple[float, float] = (1, 1),
    ) -> None:
        super().__init__(context_length=context_length, num_blocks=num_blocks, block_size=32)
        self._clock = clock
        self._factors = factors
        self.passes = 0

    def forward(self, segments: list[Segment]) -> Logits:  # type: ignore[override]
        self.passes += 1
        width = sum(len(s.tokens) for s in segments)
        attention = sum(len(s.tokens) * s.start for s in segments)
        slower, steeper = self._factors
        self._clock.advance(slower * (0.020 + steeper * 0.001 * width + 1e-6 * attention))
        return super().forward(segments)


def test_calibration_finds_the_curve_and_the_attention() -> None:
    clock = ManualClock()
    model = calibrate(TimedRunner(clock), clock)
    assert model.seconds(Load(1, 0, 1)) == pytest.approx(0.021)
    assert model.seconds(Load(12, 0, 1)) == pytest.approx(0.032)
    assert model.seconds(Load(4, 4000, 1)) == pytest.approx(0.028, rel=0.01)


@pytest.mark.parametrize(("context", "blocks"), [(8, 2), (64, 2), (4096, 1)])
def test_calibration_fits_small_models_and_caches(context: int, blocks: int) -> None:
    clock = ManualClock()
    model = calibrate(TimedRunner(clock, context, blocks), clock)
    assert model.seconds(Load(1, 0, 1)) == pytest.approx(0.021)
    assert model.seconds(Load(2, 0, 2)) > 0


def test_a_saved_cost_is_found_again_on_a_machine_of_another_speed(tmp_path: Path) -> None:
    clock = ManualClock()
    save_cost(calibrate(TimedRunner(clock), clock), tmp_path / "cost" / "a.json")
    runner = TimedRunner(clock, factors=(1.5, 1.0))
    again = recalled(runner, tmp_path / "cost" / "a.json", clock)
    assert again is not None
    assert runner.passes < 15
    assert again.seconds(Load(12, 0, 1)) == pytest.approx(1.5 * 0.032, rel=0.02)
    assert again.seconds(Load(8, 800, 8)) == pytest.approx(1.5 * (0.028 + 0.0008), rel=0.05)


def test_a_saved_cost_of_another_shape_is_not_believed(tmp_path: Path) -> None:
    clock = ManualClock()
    save_cost(calibrate(TimedRunner(clock), clock), tmp_path / "a.json")
    assert recalled(TimedRunner(clock, factors=(1.0, 4.0)), tmp_path / "a.json", clock) is None


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"curve": {"1": -1}, "attention": 0, "plain": {}, "mixed": {}, "switch": 0}']
)
def test_a_file_that_is_no_cost_is_measured_anew(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    assert recalled(TimedRunner(ManualClock()), tmp_path / "a.json", ManualClock()) is None
    assert recalled(TimedRunner(ManualClock()), tmp_path / "none.json", ManualClock()) is None


def test_a_folder_that_cannot_be_written_is_no_reason_to_fail(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    save_cost(CostModel(CURVE), tmp_path / "file" / "a.json")
