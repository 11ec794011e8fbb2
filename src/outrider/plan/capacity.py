"""Capacity before deployment: batch, latency, throughput and cost with and without speculation, by batch and window."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

from pydantic import BaseModel, ConfigDict, Field, model_validator

from outrider.errors import InvalidRequest
from outrider.plan.hardware import GIB, Accelerator, ModelShape, Precision
from outrider.plan.roofline import PassCost, Roofline, memory_budget_bytes

LONGEST = 12


class Deployment(BaseModel):
    """What is deployed on what, and for whom."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    target: ModelShape
    draft: ModelShape | None = None
    """A draft model; None drafts for nothing, as lookup does."""
    accelerator: Accelerator
    tensor_parallel: int = Field(default=1, ge=1, le=64)
    precision: Precision = "f16"
    draft_precision: Precision = "f16"
    kv_bytes_per_number: float = Field(default=2.0, gt=0)
    memory_utilisation: float = Field(default=0.9, gt=0, le=1)
    workspace_gib_per_device: float = Field(default=1.0, ge=0)
    """For activations and the engine itself."""
    acceptance: tuple[float, ...]
    """For each position the probability that a draft token is accepted given that those before it were; the last
    one stands for all that follow."""
    drafting_share: float = Field(default=0.0, ge=0)
    """Cost of a draft token as a share of a plain pass, where there is no draft model (a head: 0.03 to 0.1)."""
    prompt_tokens: float = Field(gt=0)
    output_tokens: float = Field(gt=0)
    requests_per_second: float = Field(gt=0)
    ttft_target_seconds: float | None = Field(default=None, gt=0)
    itl_target_seconds: float | None = Field(default=None, gt=0)
    """Inter-token latency that a request may have at most, on average."""
    max_window: int = Field(default=8, ge=1, le=LONGEST)
    max_batch: int = Field(default=512, ge=1)

    @model_validator(mode="after")
    def _sane(self) -> Deployment:
        if not self.acceptance or not all(0.0 <= a <= 1.0 for a in self.acceptance):
            raise ValueError(f"acceptance={self.acceptance} must be probabilities, one or more")
        return self

    @property
    def tokens_per_sequence(self) -> float:
        """Of a request when it is done."""
        return self.prompt_tokens + self.output_tokens

    @property
    def context_tokens(self) -> float:
        """Of a request half-way through its answer."""
        return self.prompt_tokens + self.output_tokens / 2

    def tokens_per_pass(self, window: int) -> float:
        """Expected tokens that a pass emits for a sequence, the target's own included."""
        chances = [self.acceptance[min(i, len(self.acceptance) - 1)] for i in range(window)]
        return 1.0 + float(sum(accumulate(chances, mul)))


class Memory(BaseModel):
    """Where the memory goes."""

    total_gib: float
    """Of all devices, as far as it may be used."""
    target_weights_gib: float
    draft_weights_gib: float
    draft_weights_gib_per_device: float
    kv_kib_per_token: float
    draft_kv_kib_per_token: float
    kv_gib_per_sequence: float
    draft_kv_gib_per_sequence: float
    max_batch: int
    """Sequences at their full length, with the draft."""
    max_batch_without_draft: int
    batch_lost: int
    batch_lost_share: float


class Cell(BaseModel):
    """One batch and window."""

    batch: int
    window: int
    tokens_per_pass: float
    cycle_seconds: float
    """Of a pass with its drafting."""
    itl_seconds: float
    """Mean time between tokens of a request."""
    tokens_per_second: float
    """Of the whole batch."""
    speedup: float
    """Over window 0 at the same batch."""
    bound: str
    """`memory` or `compute`: what the pass waits for; `measured` where that is not known."""


class ServicePoint(BaseModel):
    """The best a deployment does within its targets."""

    batch: int
    window: int
    itl_seconds: float
    ttft_seconds: float
    """Of a request that waits for nobody: its prompt's pass and the pass under way."""
    tokens_per_second: float
    requests_per_second: float
    """Prompts counted too: what one replica can take for ever."""
    replicas: int
    devices: int
    dollars_per_hour: float
    dollars_per_day: float
    dollars_per_million_tokens: float
    meets_targets: bool


class Operation(BaseModel):
    """One replica of those planned at its share of the planned rate, by Little's law: usually far below its limit."""

    batch: int
    """Smallest batch whose throughput is what the rate asks for."""
    window: int
    itl_seconds: float
    itl_seconds_without: float
    speedup: float
    """Per request, at the batch that it then runs at."""


class CapacityPlan(BaseModel):
    """What `outrider plan --json` writes."""

    deployment: Deployment
    memory: Memory
    cells: list[Cell]
    schedule: list[tuple[int, int, int]]
    """From batch, to batch, window: the fastest window at each batch."""
    turns_negative_at: int | None
    """Smallest batch at which no window pays; None where one always does."""
    why_negative: str | None
    without: ServicePoint
    with_speculation: ServicePoint
    operation: Operation
    net_throughput_ratio: float
    """Tokens per second within the targets, with over without, the batch lost to the draft counted."""
    verdict: str


@dataclass(frozen=True, slots=True)
class Costs:
    """Passes of target and draft; None for no draft model."""

    target: PassCost
    draft: PassCost | None
    drafting_share: float = 0.0

    def cycle(self, batch: int, window: int, context_tokens: float) -> float:
        """Seconds of a pass with so many draft tokens each, and of making them."""
        seconds = self.target.seconds(batch, window + 1, context_tokens)
        if window and self.draft is not None:
            seconds += window * self.draft.seconds(batch, 1, context_tokens)
        if window and self.drafting_share:
            seconds += window * self.drafting_share * self.target.seconds(1, 1, context_tokens)
        return seconds

    def prefill(self, prompt_tokens: float) -> float:
        """Seconds of a prompt's own pass, in target and draft."""
        seconds = self.target.seconds(1, prompt_tokens, 0)
        return seconds + (self.draft.seconds(1, prompt_tokens, 0) if self.draft is not None else 0.0)


def roofline_costs(deployment: Deployment) -> Costs:
    """Costs from data sheets."""
    target, draft = (
        Roofline(
            model,
            deployment.accelerator,
            precision,
            deployment.tensor_parallel,
            deployment.kv_bytes_per_number,
        )
        if model is not None
        else None
        for model, precision in (
            (deployment.target, deployment.precision),
            (deployment.draft, deployment.draft_precision),
        )
    )
    assert target is not None
    return Costs(target, draft, deployment.drafting_share)


def memory_of(deployment: Deployment) -> Memory:
    """Weights and KV cache of target and draft, and the batch that is lost to the draft.

    Raises:
        InvalidRequest: the weights alone do not fit.
    """
    ways = deployment.tensor_parallel
    total = memory_budget_bytes(deployment.accelerator, ways, deployment.memory_utilisation)
    total -= ways * deployment.workspace_gib_per_device * GIB
    weights = deployment.target.weight_bytes(deployment.precision)
    draft_weights = deployment.draft.weight_bytes(deployment.draft_precision) if deployment.draft else 0.0
    number = deployment.kv_bytes_per_number
    kv = deployment.target.kv_bytes_per_token(number)
    draft_kv = deployment.draft.kv_bytes_per_token(number) if deployment.draft else 0.0
    length = deployment.tokens_per_sequence
    alone = math.floor((total - weights) / (kv * length))
    together = math.floor((total - weights - draft_weights) / ((kv + draft_kv) * length))
    if together < 1:
        need = (weights + draft_weights + (kv + draft_kv) * length) / GIB
        raise InvalidRequest(
            f"{deployment.target.name} needs {need:.1f} GiB for weights and one sequence; {ways} x "
            f"{deployment.accelerator.name} give {total / GIB:.1f} GiB. Take more devices or narrower weights"
        )
    return Memory(
        total_gib=total / GIB,
        target_weights_gib=weights / GIB,
        draft_weights_gib=draft_weights / GIB,
        draft_weights_gib_per_device=draft_weights / GIB / ways,
        kv_kib_per_token=kv / 1024,
        draft_kv_kib_per_token=draft_kv / 1024,
        kv_gib_per_sequence=kv * length / GIB,
        draft_kv_gib_per_sequence=draft_kv * length / GIB,
        max_batch=together,
        max_batch_without_draft=alone,
        batch_lost=alone - together,
        batch_lost_share=1.0 - together / alone,
    )


def plan(deployment: Deployment, costs: Costs | None = None) -> CapacityPlan:
    """Work out batch, latency, throughput and cost.

    Args:
        deployment: what is planned.
        costs: measured passes; by default from data sheets.

    Raises:
        InvalidRequest: the model does not fit.
    """
    costs = costs or roofline_costs(deployment)
    memory = memory_of(deployment)
    most = min(deployment.max_batch, memory.max_batch_without_draft)
    batches = _batches(most)
    cells = [
        _cell(deployment, costs, batch, window) for batch in batches for window in range(deployment.max_window + 1)
    ]
    best = {
        batch: max((cell for cell in cells if cell.batch == batch), key=lambda cell: cell.tokens_per_second)
        for batch in batches
    }
    plain_points = [cell for cell in cells if cell.window == 0]
    # with a draft loaded its memory is lost whether it drafts or not
    fast_points = [best[batch] for batch in batches if batch <= memory.max_batch]
    without = _service(deployment, costs, plain_points)
    with_speculation = _service(deployment, costs, fast_points)
    negative = next((batch for batch in batches if best[batch].window == 0), None)
    ratio = with_speculation.tokens_per_second / without.tokens_per_second
    operation = _operation(deployment, plain_points, fast_points, with_speculation.replicas)
    return CapacityPlan(
        deployment=deployment,
        memory=memory,
        cells=cells,
        schedule=_schedule([(batch, best[batch].window) for batch in batches]),
        turns_negative_at=negative,
        why_negative=_why(deployment, costs, negative) if negative is not None else None,
        without=without,
        with_speculation=with_speculation,
        operation=operation,
        net_throughput_ratio=ratio,
        verdict=_verdict(memory, without, with_speculation, ratio, operation),
    )


def _batches(most: int) -> list[int]:
    sizes = sorted({1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, most})
    return [size for size in sizes if size <= most]


def _cell(deployment: Deployment, costs: Costs, batch: int, window: int) -> Cell:
    context = deployment.context_tokens
    seconds = costs.cycle(batch, window, context)
    tokens = deployment.tokens_per_pass(window)
    plain = costs.cycle(batch, 0, context)
    bound = "measured"
    if isinstance(costs.target, Roofline):
        bound = "compute" if costs.target.parts(batch, window + 1, context).compute_bound else "memory"
    return Cell(
        batch=batch,
        window=window,
        tokens_per_pass=tokens,
        cycle_seconds=seconds,
        itl_seconds=seconds / tokens,
        tokens_per_second=batch * tokens / seconds,
        speedup=tokens * plain / seconds,
        bound=bound,
    )


def _service(deployment: Deployment, costs: Costs, points: Sequence[Cell]) -> ServicePoint:
    """The point with the most tokens per second that keeps the targets, or the fastest one where none does."""
    prefill = costs.prefill(deployment.prompt_tokens)

    def meets(cell: Cell) -> bool:
        itl, ttft = deployment.itl_target_seconds, deployment.ttft_target_seconds
        return (itl is None or cell.itl_seconds <= itl) and (ttft is None or prefill + cell.cycle_seconds <= ttft)

    kept = [cell for cell in points if meets(cell)]
    chosen = (
        max(kept, key=lambda cell: cell.tokens_per_second) if kept else min(points, key=lambda cell: cell.itl_seconds)
    )
    # a request takes its prompt's pass alone, and its share of a full batch's passes
    decode = deployment.output_tokens / chosen.tokens_per_second
    requests = 1.0 / (prefill + decode)
    replicas = max(1, math.ceil(deployment.requests_per_second / requests))
    devices = replicas * deployment.tensor_parallel
    hourly = devices * deployment.accelerator.dollars_per_hour
    tokens_per_hour = 3600 * replicas * requests * deployment.output_tokens
    return ServicePoint(
        batch=chosen.batch,
        window=chosen.window,
        itl_seconds=chosen.itl_seconds,
        ttft_seconds=prefill + chosen.cycle_seconds,
        tokens_per_second=chosen.tokens_per_second,
        requests_per_second=requests,
        replicas=replicas,
        devices=devices,
        dollars_per_hour=hourly,
        dollars_per_day=24 * hourly,
        dollars_per_million_tokens=1e6 * hourly / tokens_per_hour,
        meets_targets=bool(kept),
    )


def _operation(deployment: Deployment, plain: Sequence[Cell], fast: Sequence[Cell], replicas: int) -> Operation:
    wanted = deployment.requests_per_second / replicas * deployment.output_tokens

    def runs_at(points: Sequence[Cell]) -> Cell:
        return next((cell for cell in points if cell.tokens_per_second >= wanted), points[-1])

    slow, quick = runs_at(plain), runs_at(fast)
    return Operation(
        batch=quick.batch,
        window=quick.window,
        itl_seconds=quick.itl_seconds,
        itl_seconds_without=slow.itl_seconds,
        speedup=slow.itl_seconds / quick.itl_seconds,
    )


def _schedule(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int, int]]:
    found: list[tuple[int, int, int]] = []
    for number, (batch, window) in enumerate(pairs):
        end = pairs[number + 1][0] - 1 if number + 1 < len(pairs) else batch
        if found and found[-1][2] == window:
            found[-1] = (found[-1][0], end, window)
        else:
            found.append((batch, end, window))
    return found


def _why(deployment: Deployment, costs: Costs, batch: int) -> str:
    context = deployment.context_tokens
    plain = costs.cycle(batch, 0, context)
    dearer = costs.target.seconds(batch, 2, context) / costs.target.seconds(batch, 1, context)
    drafting = (costs.cycle(batch, 1, context) - costs.target.seconds(batch, 2, context)) / plain
    gain = deployment.tokens_per_pass(1) - 1
    reason = "drafting" if drafting > dearer - 1 else "verification"
    bound = ""
    if isinstance(costs.target, Roofline) and costs.target.parts(batch, 2, context).compute_bound:
        bound = ", which is bound by compute there"
    return (
        f"at batch {batch} one draft token adds {gain:.2f} tokens per pass, and costs {dearer - 1 + drafting:.2f} "
        f"passes ({dearer - 1:.2f} to verify{bound}, {drafting:.2f} to draft); mostly {reason}"
    )


def _verdict(memory: Memory, without: ServicePoint, fast: ServicePoint, ratio: float, operation: Operation) -> str:
    lost = f"the draft takes the room of {memory.batch_lost} of {memory.max_batch_without_draft} sequences"
    tail = f"; {lost}" if memory.batch_lost else ""
    if not without.meets_targets and fast.meets_targets:
        return f"deploy with a window of {fast.window}: only with it the latency target is met{tail}"
    if ratio > 1.02 and fast.window:
        return f"deploy with a window of {fast.window}: {ratio:.2f}x the throughput within the targets{tail}"
    if operation.window and operation.speedup > 1.05 and ratio > 0.98:
        return (
            f"deploy with a window of {operation.window} that goes to 0 with load: at the planned rate a replica runs "
            f"about {operation.batch} sequences and each is {operation.speedup:.2f}x as fast; at its limit nothing is "
            f"gained ({ratio:.2f}x){tail}"
        )
    if operation.window and operation.speedup > 1.05:
        return (
            f"deploy where latency counts more than throughput: {operation.speedup:.2f}x per request at the planned "
            f"rate, {ratio:.2f}x the throughput at the limit{tail}"
        )
    return f"do not deploy: {ratio:.2f}x the throughput, {operation.speedup:.2f}x per request at the planned rate{tail}"
