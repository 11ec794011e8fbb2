"""Slow clients, logs, spans, a dead engine."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import uvicorn

from outrider.api import Engine
from outrider.engine import Completion, Timings, Usage
from outrider.errors import InvalidRequest
from outrider.server import ServerConfig, create_app
from outrider.server.logs import configure, summary
from outrider.server.run import _Server, head_in_time
from outrider.server.spans import Spans

pytestmark = pytest.mark.model
BODY = {"model": "smollm2-135m", "messages": [{"role": "user", "content": "A secret word."}], "max_tokens": 4}


def answer() -> Completion:
    done = Completion(0, text="a secret", finish_reason="stop")
    done.usage = Usage(prompt_tokens=7, completion_tokens=3, accepted=2)
    done.timings = Timings(arrived=10.0, admitted=10.5, first_token=11.0, last_token=12.0)
    return done


class Running:
    """A server with a protocol and limits of its own."""

    def __init__(self, engine: Engine, config: ServerConfig) -> None:
        app = create_app(engine, config)
        settings = uvicorn.Config(
            app, host="127.0.0.1", port=0, log_level="error", http=head_in_time(config.header_timeout)
        )
        self.server = _Server(settings, engine if config.on_engine_death == "exit" else None)
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)
        self.port = self.server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        self.thread.join(10)


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=20)


def test_a_head_that_never_ends_is_hung_up_on_and_others_are_served(engine: Engine) -> None:
    with Running(engine, ServerConfig(header_timeout=0.5)) as running:
        with connect(running.port) as slow:
            slow.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nX-Slow: ")
            assert httpx.get(f"{running.url}/health").status_code == 200
            assert slow.recv(100) == b"", "the connection is still open"
        with httpx.Client() as client:  # a connection that is kept is not one that is slow
            assert client.get(f"{running.url}/health").status_code == 200
            time.sleep(0.8)
            assert client.get(f"{running.url}/health").status_code == 200


def test_a_body_that_never_comes_is_refused(engine: Engine) -> None:
    with Running(engine, ServerConfig(body_timeout=0.5)) as running, connect(running.port) as slow:
        slow.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b'Content-Length: 500\r\n\r\n{"model": '
        )
        said = b"".join(iter(lambda: slow.recv(2000), b""))
        assert b" 408 " in said.splitlines()[0]
        assert b"did not come" in said


def test_an_answer_slower_than_the_limits_of_its_request_is_not_cut(engine: Engine) -> None:
    config = ServerConfig(body_timeout=0.2, header_timeout=0.2)
    with Running(engine, config) as running:
        body = BODY | {"max_tokens": 60, "ignore_eos": True, "speculation": "off"}
        done = httpx.post(f"{running.url}/v1/chat/completions", json=body, timeout=60).json()
        assert done["usage"]["completion_tokens"] == 60


def test_a_log_line_has_the_request_and_none_of_its_words(
    engine: Engine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = logging.getLogger("outrider")
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "propagate", True)
    level = logger.level
    try:
        configure("json", "info")
        with Running(engine, ServerConfig()) as running:
            response = httpx.post(f"{running.url}/v1/chat/completions", json=BODY, timeout=60)
    finally:
        logger.setLevel(level)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith("{")]
    line = next(line for line in lines if line.get("request_id") == response.headers["x-request-id"])
    assert line["completion_tokens"] == response.json()["usage"]["completion_tokens"]
    assert line["ttft_ms"] > 0
    assert line["level"] == "info"
    assert "secret" not in json.dumps(lines)


def test_text_lines_carry_the_fields_too(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    logger = logging.getLogger("outrider")
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "propagate", True)
    level = logger.level
    try:
        configure("text", "info")
        logger.info("answered", extra={"fields": summary("chat", "r1", answer())})
    finally:
        logger.setLevel(level)
    said = capsys.readouterr().err
    assert "request_id=r1" in said
    assert "ttft_ms=1000.0" in said


def test_a_span_tells_when_and_hangs_under_the_callers() -> None:
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    kept = InMemorySpanExporter()
    spans = Spans("", kept)
    trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    spans.add(summary("chat", "r1", answer()), answer(), {"traceparent": f"00-{trace}-{parent}-01"})
    spans.flush()
    (span,) = kept.get_finished_spans()
    spans.close()
    assert span.name == "outrider.chat"
    assert f"{span.context.trace_id:032x}" == trace
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" == parent
    assert span.end_time is not None
    assert span.start_time is not None
    assert (span.end_time - span.start_time) / 1e9 == pytest.approx(2.0)
    assert [event.name for event in span.events] == ["admitted", "first token"]
    attributes: Any = span.attributes
    assert attributes["outrider.request_id"] == "r1"
    assert "secret" not in str(attributes)


def test_without_the_extra_tracing_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(InvalidRequest, match=r"outrider\[otel\]"):
        Spans("http://localhost:4318/v1/traces")


class Dead:
    """An engine of which only its death is known."""

    alive = True

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


@pytest.mark.parametrize("policy", ["exit", "stay"])
def test_a_dead_engine_ends_the_server_unless_told_to_stay(engine: Engine, policy: Any) -> None:
    dead = Dead(engine)
    with Running(dead, ServerConfig(on_engine_death=policy)) as running:  # type: ignore[arg-type]
        assert httpx.get(f"{running.url}/ready").status_code == 200
        dead.alive = False
        if policy == "exit":
            running.thread.join(10)
            assert running.server.engine_died
            with pytest.raises(httpx.TransportError):
                httpx.get(f"{running.url}/ready")
        else:
            time.sleep(0.5)
            assert httpx.get(f"{running.url}/ready").status_code == 503
            assert urlsplit(running.url).port == running.port


def test_a_drafts_memory_is_in_the_metrics(engine: Engine) -> None:
    from outrider.draft import DraftReport
    from outrider.server.metrics import Metrics

    class Drafted(Dead):
        draft = DraftReport("d", "model", "same vocabulary", 7.0, 0.2, 0.3, 1000, 2000, 10, 3)

    from prometheus_client import generate_latest

    text = generate_latest(Metrics(Drafted(engine)).registry).decode()  # type: ignore[arg-type]
    assert 'outrider_draft_bytes{what="weights"} 1000.0' in text
    assert 'outrider_draft_bytes{what="kv"} 2000.0' in text
    assert "outrider_sequences_lost 3.0" in text


def test_a_schema_asked_for_twice_is_compiled_once(engine: Engine) -> None:
    from outrider.params import Grammar

    one = engine.compile(Grammar.json_schema({"type": "object", "properties": {"a": {"type": "integer"}}}))
    two = engine.compile(Grammar.json_schema({"type": "object", "properties": {"a": {"type": "integer"}}}))
    assert one is two
