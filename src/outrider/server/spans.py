"""OpenTelemetry: a span for each answer, under the caller's own where it sent one. Needs the `otel` extra."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Mapping
from typing import Any

from outrider.engine import Completion
from outrider.errors import InvalidRequest


class Spans:
    """Sends spans to a collector; an answer waits for none of them.

    Args:
        endpoint: of the collector, for traces over HTTP.
        exporter: another way out, for tests.

    Raises:
        InvalidRequest: the extra is not installed.
    """

    def __init__(self, endpoint: str, exporter: Any = None) -> None:
        if importlib.util.find_spec("opentelemetry.sdk") is None:
            raise InvalidRequest("tracing needs OpenTelemetry; install it with: pip install 'outrider[otel]'")
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        if exporter is None:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            exporter = OTLPSpanExporter(endpoint=endpoint)
        self._provider = TracerProvider(resource=Resource.create({"service.name": "outrider"}))
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("outrider")
        self._callers = TraceContextTextMapPropagator()

    def add(self, record: Mapping[str, Any], completion: Completion, headers: Mapping[str, str]) -> None:
        """A span of an answer that has just ended: when it came, was admitted, and said its first word."""
        timings = completion.timings
        end = time.time_ns()
        last = timings.last_token if timings.last_token is not None else timings.arrived

        def moment(seconds: float) -> int:
            return end - int(1e9 * (last - seconds))

        span = self._tracer.start_span(
            f"outrider.{record['route']}",
            context=self._callers.extract(dict(headers)),
            start_time=moment(timings.arrived),
            attributes={f"outrider.{name}": value for name, value in record.items() if value is not None},
        )
        for name, seconds in (("admitted", timings.admitted), ("first token", timings.first_token)):
            if seconds is not None:
                span.add_event(name, timestamp=moment(seconds))
        span.end(end_time=end)

    def flush(self) -> None:
        """Send what waits."""
        self._provider.force_flush()

    def close(self) -> None:
        """Send what waits, and stop."""
        self._provider.shutdown()
