"""Capacity: the arithmetic of memory and passes, monotone where physics says so, and calibration by measurement."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from typer.testing import CliRunner

from outrider import cli
from outrider.errors import InvalidRequest
from outrider.plan import CapacityPlan, Deployment, plan, roofline_costs
from outrider.plan.capacity import Cell, Memory, Operation, ServicePoint, memory_of
from outrider.plan.hardware import ACCELERATORS, GIB, Accelerator, ModelShape, find_accelerator, find_shape
from outrider.plan.roofline import Calibrated, Point, Roofline, held_out_errors, read_points
from outrider.plan.simulate import Arrival, Simulated, at_rate, poisson, read_trace, simulate

RUN = CliRunner()


def deployment(**fields: Any) -> Deployment:
    made: dict[str, Any] = {
        "target": find_shape("llama-2-70b"),
        "draft": find_shape("llama-2-7b"),
        "accelerator": find_accelerator("a100-80"),
        "tensor_parallel": 8,
        "acceptance": (0.7,),
        "prompt_tokens": 1000,
        "output_tokens": 250,
        "requests_per_second": 4,
    }
    return Deployment(**{**made, **fields})


# --- the 70B example: public dimensions, worked out by hand ----------------------------------------------------


def test_parameters_of_public_models() -> None:
    """The published totals: 6.74B, 68.98B, 8.03B, 70.55B, 1.24B, 134.5M."""
    for name, billions in (
        ("llama-2-7b", 6.738),
        ("llama-2-70b", 68.976),
        ("llama-3-8b", 8.030),
        ("llama-3-70b", 70.553),
        ("llama-3.2-1b", 1.2357),
        ("smollm2-135m", 0.1345),
    ):
        assert find_shape(name).stored_parameters / 1e9 == pytest.approx(billions, rel=2e-3), name


def test_the_draft_of_the_70b_example_takes_its_memory() -> None:
    memory = memory_of(deployment())
    # 80 layers x 8 heads x 128 x 2 (K and V) x 2 bytes; the 7B has 32 heads for its keys, and more KV than the 70B
    assert memory.kv_kib_per_token == 320
    assert memory.draft_kv_kib_per_token == 512
    assert memory.draft_weights_gib_per_device == pytest.approx(13.476e9 / 8 / GIB, rel=1e-3)  # "2 GB per GPU"
    total = 8 * (80 * 0.9 - 1.0)
    alone = (total - 68.976e9 * 2 / GIB) / (1250 * 320 / 2**20)
    together = (total - (68.976e9 + 6.738e9) * 2 / GIB) / (1250 * 832 / 2**20)
    assert memory.max_batch_without_draft == int(alone)
    assert memory.max_batch == int(together)
    assert memory.batch_lost == int(alone) - int(together)
    assert memory.batch_lost_share > 0.6


def test_a_model_that_does_not_fit_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"needs 14\d\.\d GiB .* 1 x a100-80 give 71\.0 GiB"):
        plan(deployment(tensor_parallel=1))


# --- physics ---------------------------------------------------------------------------------------------------

shapes = st.sampled_from(["llama-2-7b", "llama-3-8b", "llama-3-70b", "qwen2.5-0.5b"]).map(find_shape)
devices = st.sampled_from(sorted(ACCELERATORS)).map(find_accelerator)


@settings(max_examples=60, deadline=None)
@given(shapes, devices, st.integers(1, 64), st.integers(1, 9), st.integers(0, 4000), st.sampled_from([1, 2, 4, 8]))
def test_a_pass_is_monotone(
    model: ModelShape, device: Accelerator, batch: int, tokens: int, context: int, ways: int
) -> None:
    roofline = Roofline(model, device, tensor_parallel=ways)
    here = roofline.seconds(batch, tokens, context)
    assert here > 0
    assert roofline.seconds(batch + 1, tokens, context) >= here
    assert roofline.seconds(batch, tokens + 1, context) >= here
    assert roofline.seconds(batch, tokens, context + 100) >= here
    assert Roofline(model, device, "i4", ways).seconds(batch, tokens, context) <= here
    double = device.model_copy(update={"bandwidth_gb_per_s": 2 * device.bandwidth_gb_per_s})
    assert Roofline(model, double, tensor_parallel=ways).seconds(batch, tokens, context) <= here


@settings(max_examples=40, deadline=None)
@given(st.floats(0, 1), st.floats(0, 0.2), st.integers(1, 12), st.floats(0.001, 0.5))
def test_more_acceptance_is_never_worse(a: float, more: float, window: int, itl: float) -> None:
    low, high = (
        plan(deployment(draft=None, acceptance=(min(1.0, chance),), max_window=window, itl_target_seconds=itl))
        for chance in (a, a + more)
    )
    assert high.with_speculation.tokens_per_second >= low.with_speculation.tokens_per_second * (1 - 1e-9)
    for one, other in zip(low.cells, high.cells, strict=True):
        assert other.tokens_per_second >= one.tokens_per_second * (1 - 1e-9)


@settings(max_examples=30, deadline=None)
@given(st.floats(0.1, 0.95), st.booleans())
def test_the_plan_adds_up(a: float, draft: bool) -> None:
    found = plan(deployment(acceptance=(a,), draft=find_shape("llama-3.2-1b") if draft else None))
    assert found.memory.batch_lost >= 0
    assert (found.memory.batch_lost > 0) == draft
    by_batch = {cell.batch: cell for cell in found.cells if cell.window == 0}
    for cell in found.cells:
        assert cell.tokens_per_pass == pytest.approx((1 - a ** (cell.window + 1)) / (1 - a))
        assert cell.tokens_per_second == pytest.approx(cell.batch / cell.itl_seconds)
        plain = by_batch[cell.batch]
        assert cell.speedup == pytest.approx(plain.itl_seconds / cell.itl_seconds)
    # never slower: zero is a window
    assert found.net_throughput_ratio >= 1.0 or found.memory.batch_lost > 0
    low = 1
    for start, end, _ in found.schedule:
        assert start == low
        low = end + 1
    for point in (found.without, found.with_speculation):
        assert point.dollars_per_day == pytest.approx(24 * point.devices * 2.0)
        assert point.requests_per_second * point.replicas >= 4


def test_no_acceptance_gives_no_window_and_a_no() -> None:
    found = plan(deployment(acceptance=(0.05,)))
    assert found.schedule[0][2] == 0
    assert found.turns_negative_at == 1
    assert found.why_negative is not None
    assert "costs" in found.why_negative
    assert found.verdict.startswith("do not deploy")


def test_a_batch_that_computes_does_not_speculate() -> None:
    found = plan(deployment(draft=None, acceptance=(0.6,), prompt_tokens=200))
    windows = [window for _, _, window in found.schedule]
    assert windows[0] > windows[-1]
    assert windows == sorted(windows, reverse=True)


def test_a_latency_target_only_speculation_meets() -> None:
    slow = plan(deployment(draft=None, acceptance=(0.8,)))
    alone = next(cell for cell in slow.cells if cell.batch == 1 and cell.window == 0)
    found = plan(deployment(draft=None, acceptance=(0.8,), itl_target_seconds=alone.itl_seconds * 0.7))
    assert not found.without.meets_targets
    assert found.with_speculation.meets_targets
    assert "only with it" in found.verdict


def test_every_number_says_its_unit() -> None:
    """A field that is not a count, a share or a ratio has its unit in its name."""
    units = ("seconds", "gib", "kib", "bytes", "tokens", "per_s", "per_hour", "per_day", "tflops")
    pure = {
        "acceptance", "drafting_share", "memory_utilisation", "kv_bytes_per_number", "batch_lost_share", "speedup",
        "net_throughput_ratio", "mean_batch", "mean_window", "waited_share", "tokens_per_pass",
    }  # fmt: skip
    models: list[type[BaseModel]] = [
        Deployment,
        Memory,
        Cell,
        Operation,
        ServicePoint,
        CapacityPlan,
        Simulated,
        Accelerator,
    ]
    for model in models:
        for name, field in model.model_fields.items():
            if "float" in str(field.annotation) and name not in pure:
                assert any(unit in name for unit in units), f"{model.__name__}.{name}"


# --- calibration -----------------------------------------------------------------------------------------------


def law(batch: int, window: int) -> float:
    """A machine whose passes with drafts take another path, as CPUs have."""
    tokens = batch * (window + 1)
    return 0.02 + 0.002 * tokens + (0.004 * batch + 0.003 if window else 0.0)


POINTS = [
    Point(batch=batch, window=window, context_tokens=200, seconds=law(batch, window))
    for batch in (1, 2, 4, 8)
    for window in range(9)
]


def test_calibration_finds_the_law_from_other_points() -> None:
    errors = held_out_errors(POINTS)
    assert max(abs(each.error) for each in errors) < 0.05
    cost = Calibrated(POINTS)
    for point in POINTS:
        assert cost.seconds(point.batch, point.window + 1, 200) == pytest.approx(point.seconds, rel=0.01)
    assert cost.seconds(6, 4, 200) == pytest.approx(law(6, 3), rel=0.05)


def test_calibration_follows_a_bump_that_no_line_has() -> None:
    bumped = [p if p.window != 6 else p.model_copy(update={"seconds": p.seconds * 1.4}) for p in POINTS]
    cost = Calibrated(bumped)
    for point in bumped:
        assert cost.seconds(point.batch, point.window + 1, 200) == pytest.approx(point.seconds, rel=0.05)


def test_too_few_points_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="2 plain passes and 3 with drafts"):
        Calibrated(POINTS[:2])
    path = tmp_path / "x.json"
    path.write_text("{}")
    with pytest.raises(InvalidRequest, match="no measured passes"):
        read_points(path)


# --- the simulation ----------------------------------------------------------------------------------------------


class Constant:
    """A pass of a second for each ten tokens, or a tenth at least."""

    def seconds(self, sequences: int, tokens_each: float, context_tokens: float) -> float:
        return max(0.1, sequences * tokens_each / 10)


def played(trace: list[Arrival], window: int = 0, gained: float = 1.0, **limits: Any) -> Simulated:
    from outrider.plan import Costs

    fields = {"kv_tokens": 1000.0, "max_batch": 8, **limits}
    return simulate(
        trace, Costs(Constant(), None), window_of=lambda _: window, tokens_per_pass=lambda _: gained, **fields
    )


def test_one_request_takes_its_prompt_and_its_tokens() -> None:
    found = played([Arrival(5.0, 10, 4)])
    assert found.ttft_p50_seconds == pytest.approx(1.0)
    assert found.itl_p50_seconds == pytest.approx(0.1)
    assert found.makespan_seconds == pytest.approx(1.3)
    assert found.waited_share == 0.0


def test_speculation_takes_fewer_passes() -> None:
    found = played([Arrival(0.0, 1, 9)], window=1, gained=2.0)
    assert found.makespan_seconds == pytest.approx(0.1 + 4 * 0.2)
    assert found.mean_window > 0


def test_a_full_memory_makes_the_second_wait() -> None:
    trace = [Arrival(0.0, 5, 5), Arrival(0.0, 5, 5)]
    both = played(trace)
    one = played(trace, kv_tokens=15.0)
    assert both.waited_share == 0.0
    assert one.waited_share == 0.5
    assert one.ttft_p99_seconds > both.ttft_p99_seconds
    with pytest.raises(InvalidRequest, match="does not fit"):
        played([Arrival(0.0, 50, 5)], kv_tokens=15.0)


def test_all_tokens_come_out() -> None:
    trace = poisson(200, 2.0, 20, 10, seed=1)
    found = played(trace, kv_tokens=5000.0)
    assert found.requests == 200
    assert found.tokens_per_second * found.makespan_seconds == pytest.approx(sum(a.output_tokens for a in trace))


def test_traces_are_read_and_paced(tmp_path: Path) -> None:
    azure = tmp_path / "azure.csv"
    azure.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n"
        "2023-11-16 18:15:50.6805900,396,109\n"
    )
    assert read_trace(azure) == [Arrival(0.0, 374, 44), Arrival(4.0, 396, 109)]
    assert at_rate(read_trace(azure), 1.0)[1].at_seconds == pytest.approx(1.0)
    mooncake = tmp_path / "m.jsonl"
    mooncake.write_text('{"timestamp": 1500, "input_length": 7, "output_length": 3, "hash_ids": [1]}\n')
    assert read_trace(mooncake) == [Arrival(1.5, 7, 3)]
    broken = tmp_path / "b.csv"
    broken.write_text("a,b\n1,2\n")
    with pytest.raises(InvalidRequest, match="is no trace"):
        read_trace(broken)


# --- what people type --------------------------------------------------------------------------------------------


def test_the_command_writes_a_report_that_asks_nothing_of_the_network(tmp_path: Path) -> None:
    page, out = tmp_path / "p.html", tmp_path / "p.json"
    args = ["plan", "--target", "llama-3-8b", "--accelerator", "h100", "--acceptance", "0.6,0.5", "--rate", "2"]
    done = RUN.invoke(cli.app, [*args, "--html", str(page), "--json", str(out)])
    assert done.exit_code == 0, done.output
    assert "lost to the draft" in done.stdout
    text = page.read_text()
    assert "http" not in text
    assert "<script" not in text
    assert text.count("<svg") == 2
    found = json.loads(out.read_text())
    assert set(found["simulated"]) == {"without", "with"}
    assert found["plan"]["deployment"]["acceptance"] == [0.6, 0.5]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"--target": "lama-3-8b"}, "Did you mean llama-3-8b"),
        ({"--accelerator": "h10"}, "Did you mean h100"),
        ({"--acceptance": "often"}, "no probability"),
        ({"--acceptance": "1.4"}, "must be probabilities"),
        ({"--precision": "f12"}, "precision"),
    ],
)
def test_refusals_say_what_would_be_right(change: dict[str, str], message: str) -> None:
    options = {"--target": "llama-3-8b", "--accelerator": "h100", "--acceptance": "0.6", **change}
    done = RUN.invoke(cli.app, ["plan", *(part for pair in options.items() for part in pair)])
    assert done.exit_code
    assert message in str(done.exception)


def test_shapes_of_sizes_and_configs(tmp_path: Path) -> None:
    assert find_shape("70B").layers == pytest.approx(80, abs=8)
    assert find_shape("7B").hidden == pytest.approx(4096, rel=0.1)
    config = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "vocab_size": 100,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    shape = find_shape(str(tmp_path))
    assert shape.stored_parameters == 2 * (64 * 64 * 4 + 3 * 64 * 128) + 2 * 100 * 64
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InvalidRequest, match="hidden_size"):
        find_shape(str(tmp_path))
    devices_file = tmp_path / "devices.json"
    devices_file.write_text('[{"name": "mine", "memory_gib": 8, "bandwidth_gb_per_s": 50, "f16_tflops": 1}]')
    assert find_accelerator("mine", devices_file).memory_gib == 8
    devices_file.write_text('[{"name": "mine"}]')
    with pytest.raises(InvalidRequest, match="memory_gib"):
        find_accelerator("mine", devices_file)


def test_a_plan_from_measured_passes_says_so() -> None:
    from outrider.plan import Costs

    costs = Costs(Calibrated(POINTS), None)
    found = plan(deployment(draft=None, target=find_shape("smollm2-135m"), tensor_parallel=1), costs)
    assert {cell.bound for cell in found.cells} == {"measured"}
    assert roofline_costs(deployment()).draft is not None
