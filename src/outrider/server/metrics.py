"""Prometheus metrics: what the engine counts, read when it is scraped, and times of requests as they end."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from outrider.api import Engine
from outrider.engine import Completion
from outrider.errors import EngineClosed

_TTFT = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_INTER_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)


class Metrics:
    """One registry for one server.

    Args:
        engine: read at each scrape.
    """

    def __init__(self, engine: Engine) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "outrider_requests", "Answers by route and how they ended.", ("route", "outcome"), registry=self.registry
        )
        self.refused = Counter("outrider_refused", "Requests that were refused.", ("status",), registry=self.registry)
        self.ttft = Histogram(
            "outrider_time_to_first_token_seconds", "From arrival.", buckets=_TTFT, registry=self.registry
        )
        self.inter_token = Histogram(
            "outrider_inter_token_seconds",
            "Mean over an answer's tokens after the first.",
            buckets=_INTER_TOKEN,
            registry=self.registry,
        )
        self.queued = Histogram(
            "outrider_queue_seconds", "Before the first pass.", buckets=_TTFT, registry=self.registry
        )
        self.registry.register(_EngineCollector(engine))

    def finished(self, route: str, completion: Completion) -> None:
        """Count an answer that ended."""
        self.requests.labels(route, completion.finish_reason or "error").inc()
        timings = completion.timings
        if timings.ttft is not None:
            self.ttft.observe(timings.ttft)
        if timings.queued is not None:
            self.queued.observe(timings.queued)
        if timings.decode is not None and completion.usage.completion_tokens > 1:
            self.inter_token.observe(timings.decode / (completion.usage.completion_tokens - 1))


class _EngineCollector(Collector):
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        try:
            stats, gauges = self._engine.snapshot(), self._engine.gauges()
        except EngineClosed:
            yield GaugeMetricFamily("outrider_up", "Whether the engine takes requests.", value=0)
            return
        yield GaugeMetricFamily("outrider_up", "Whether the engine takes requests.", value=1)
        for name, text, value in (
            ("outrider_steps", "Passes through the target.", stats.steps),
            ("outrider_step_seconds", "Time of all steps.", stats.seconds),
            ("outrider_target_seconds", "Of which inside the target.", stats.infer_seconds),
            ("outrider_draft_seconds", "Of which asking proposers.", stats.draft_seconds),
            ("outrider_draft_model_seconds", "Of which in a draft's own passes.", stats.draft_infer_seconds),
            ("outrider_coordination_seconds", "In neither target nor draft.", stats.coordination_seconds),
            ("outrider_prompt_tokens", "Prompt tokens computed.", stats.prompt_tokens),
            ("outrider_draft_tokens", "Draft tokens verified.", stats.drafted),
            ("outrider_accepted_tokens", "Draft tokens emitted.", stats.accepted),
            ("outrider_emitted_tokens", "Tokens emitted.", stats.emitted),
            ("outrider_preemptions", "Sequences that gave their memory back.", gauges.preemptions),
            ("outrider_prefix_hit_tokens", "Prompt tokens found in the prefix cache.", gauges.prefix_hit_tokens),
        ):
            yield CounterMetricFamily(name, text, value=value)
        for name, text, number in (
            ("outrider_running_sequences", "In the batch.", gauges.running),
            ("outrider_waiting_sequences", "In the queue.", gauges.waiting),
            ("outrider_kv_blocks_used", "Blocks that open requests hold.", gauges.kv_used),
            ("outrider_kv_blocks", "Blocks there are.", gauges.kv_blocks),
        ):
            yield GaugeMetricFamily(name, text, value=number)
        yield from self._draft()
        yield from self._proposers()
        yield from self._control()

    def _draft(self) -> Iterator[Metric]:
        """What the draft takes of the memory, and the batch that is lost to it."""
        draft = self._engine.draft
        if draft is None:
            return
        memory = GaugeMetricFamily("outrider_draft_bytes", "Memory of the draft.", labels=("what",))
        memory.add_metric(("weights",), draft.weights_bytes)
        memory.add_metric(("kv",), draft.kv_bytes)
        yield memory
        yield GaugeMetricFamily(
            "outrider_sequences_lost", "Sequences of 1,024 tokens that the draft's memory costs.", draft.sequences_lost
        )

    def _proposers(self) -> Iterator[Metric]:
        accepted = CounterMetricFamily(
            "outrider_accepted_at_position", "Draft tokens emitted.", labels=("proposer", "position")
        )
        drafted = CounterMetricFamily(
            "outrider_drafted_at_position", "Draft tokens verified.", labels=("proposer", "position")
        )
        for source, counts in self._engine.stats.by_source.copy().items():
            for position, (tried, held) in enumerate(zip(counts.drafted_at, counts.accepted_at, strict=True)):
                drafted.add_metric((source, str(position)), tried)
                accepted.add_metric((source, str(position)), held)
        yield drafted
        yield accepted
        faults = CounterMetricFamily("outrider_proposer_faults", "What proposers did wrong.", labels=("proposer",))
        benched = CounterMetricFamily(
            "outrider_proposer_benchings", "Times that they were benched.", labels=("proposer",)
        )
        for name, (wrong, out) in self._engine.gauges().faults.items():
            faults.add_metric((name,), wrong)
            benched.add_metric((name,), out)
        yield faults
        yield benched

    def _control(self) -> Iterator[Metric]:
        counts = self._engine.controller.counts
        steps = CounterMetricFamily(
            "outrider_speculation_steps", "Steps of requests by what they did.", labels=("did",)
        )
        steps.add_metric(("could",), counts.steps)
        steps.add_metric(("speculated",), counts.speculated)
        yield steps
        guard = CounterMetricFamily("outrider_guard_events", "What the guard did and why.", labels=("event",))
        for event in ("unpromising", "losing", "shrinks", "recoveries", "slept", "rule_shrinks", "rule_disablings"):
            guard.add_metric((event,), getattr(counts, event))
        yield guard
        yield CounterMetricFamily(
            "outrider_padding_tokens", "Added because a wider pass is cheaper.", value=counts.padded
        )
        reliability = GaugeMetricFamily(
            "outrider_acceptance_reliability_error", "Predicted against observed acceptance.", labels=("proposer",)
        )
        for source, error in self._engine.controller.reliability().items():
            reliability.add_metric((source,), error)
        yield reliability
        cost = GaugeMetricFamily("outrider_pass_seconds", "Of one sequence, by tokens in the pass.", labels=("width",))
        if self._engine.controller.cost is not None:
            for width, seconds in self._engine.controller.cost.curve().items():
                cost.add_metric((str(width),), seconds)
        yield cost
