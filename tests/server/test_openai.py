"""The official client against a real server over the real model."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from outrider.api import Engine, chat
from outrider.errors import QueueFull
from outrider.server import ServerConfig
from server.conftest import Start

pytestmark = pytest.mark.model
MODEL = "smollm2-135m"
ASK = [{"role": "user", "content": "What is a tide? Answer in one sentence."}]
QUOTE = "The ferry leaves at a quarter past seven, calls at both islands, and is back in the harbour before noon."


@pytest.fixture(scope="module")
def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "outrider"


def test_a_chat_is_the_engines_own_answer(client: openai.OpenAI, engine: Engine) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=ASK, temperature=0, max_tokens=40)  # type: ignore[arg-type]
    plain = engine.generate(chat(ASK[0]["content"]), max_tokens=40, speculation="off")
    choice = answer.choices[0]
    assert (choice.message.role, choice.message.content) == ("assistant", plain.text)
    assert choice.finish_reason == plain.finish_reason
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(plain.token_ids)
    assert answer.usage.prompt_tokens == len(plain.prompt_ids)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


@pytest.mark.parametrize("pace", ["smooth", "burst"])
def test_a_stream_is_the_same_text(client: openai.OpenAI, pace: str) -> None:
    fields: dict[str, Any] = {"model": MODEL, "messages": ASK, "temperature": 0, "max_tokens": 40}
    whole = client.chat.completions.create(**fields).choices[0]
    chunks = list(
        client.chat.completions.create(
            **fields, stream=True, stream_options={"include_usage": True}, extra_body={"pace": pace}
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == whole.finish_reason
    assert chunks[-1].usage is not None
    assert len({c.id for c in chunks}) == 1


def test_completions_prompt_as_text_and_as_tokens_and_echo(client: openai.OpenAI, engine: Engine) -> None:
    text = "The capital of France is"
    fields: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_tokens": 8}
    one = client.completions.create(prompt=text, **fields)
    two = client.completions.create(prompt=engine.encode(text), **fields)
    assert one.choices[0].text == two.choices[0].text
    assert client.completions.create(prompt=text, echo=True, **fields).choices[0].text == text + one.choices[0].text
    streamed = client.completions.create(prompt=text, stream=True, **fields)
    assert "".join(chunk.choices[0].text for chunk in streamed) == one.choices[0].text


def test_n_and_seed(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"model": MODEL, "messages": ASK, "temperature": 1.0, "max_tokens": 12, "n": 3}
    texts = [
        [choice.message.content for choice in client.chat.completions.create(**fields, seed=seed).choices]
        for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]
    assert len(set(texts[0])) == 3
    streamed: dict[int, str] = {}
    for chunk in client.chat.completions.create(**fields, seed=1, stream=True):
        choice = chunk.choices[0]
        streamed[choice.index] = streamed.get(choice.index, "") + (choice.delta.content or "")
    assert [streamed[i] for i in range(3)] == texts[0]


def test_a_seed_gives_the_same_text_with_speculation_on_and_off(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"model": MODEL, "messages": ASK, "temperature": 0.8, "top_p": 0.9, "seed": 5}
    texts = {
        client.chat.completions.create(**fields, max_tokens=48, extra_body={"speculation": mode})
        .choices[0]
        .message.content
        for mode in ("off", "auto", "threshold", {"max_window": 4}, {"mode": "fixed", "window": 6})
    }
    assert len(texts) == 1


def test_logprobs(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"model": MODEL, "messages": ASK, "temperature": 0, "max_tokens": 6}
    whole = client.chat.completions.create(**fields, logprobs=True, top_logprobs=3).choices[0]
    assert whole.logprobs is not None
    entries = whole.logprobs.content or []
    assert "".join(entry.token for entry in entries) == whole.message.content
    for entry in entries:
        assert entry.top_logprobs[0].token == entry.token  # greedy takes the likeliest
        assert entry.logprob == entry.top_logprobs[0].logprob
        assert bytes(entry.bytes or []).decode() == entry.token
    pieces = []
    for chunk in client.chat.completions.create(**fields, logprobs=True, top_logprobs=3, stream=True):
        logprobs = chunk.choices[0].logprobs
        pieces += (logprobs.content or []) if logprobs is not None else []
    assert [piece.token for piece in pieces] == [entry.token for entry in entries]
    old = client.completions.create(model=MODEL, prompt="One two", max_tokens=3, temperature=0, logprobs=2).choices[0]
    assert old.logprobs is not None
    assert len(old.logprobs.tokens or []) == 3
    assert all(len(top) == 2 for top in old.logprobs.top_logprobs or [])


def test_stop_strings_and_limits(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"model": MODEL, "messages": ASK, "temperature": 0}
    whole = client.chat.completions.create(**fields, max_tokens=30).choices[0].message.content or ""
    word = whole.split()[4]
    cut = client.chat.completions.create(**fields, max_tokens=30, stop=[word]).choices[0]
    assert cut.message.content == whole[: whole.index(word)]
    assert cut.finish_reason == "stop"
    short = client.chat.completions.create(**fields, max_completion_tokens=3).choices[0]
    assert short.finish_reason == "length"


def test_a_logit_bias_bans_a_token(client: openai.OpenAI, engine: Engine) -> None:
    fields: dict[str, Any] = {"model": MODEL, "messages": ASK, "temperature": 0, "max_tokens": 5}
    first = client.chat.completions.create(**fields).choices[0].message.content or ""
    banned = engine.encode(first)[0]
    other = client.chat.completions.create(**fields, logit_bias={str(banned): -100}).choices[0].message.content
    assert (other or "").split()[0] != first.split()[0]


def test_a_prediction_is_drafted_from_and_counted(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_tokens": 60}
    messages = [{"role": "user", "content": f"Say this sentence backwards or forwards: {QUOTE}"}]
    plain = client.chat.completions.create(messages=messages, **fields, extra_body={"speculation": "off"})
    text = plain.choices[0].message.content or ""
    used = client.chat.completions.create(messages=messages, prediction={"type": "content", "content": text}, **fields)
    assert used.choices[0].message.content == text
    assert used.usage is not None
    details = used.usage.completion_tokens_details
    assert details is not None
    assert (details.accepted_prediction_tokens or 0) > 0
    assert plain.usage is not None
    assert plain.usage.completion_tokens_details is not None
    assert plain.usage.completion_tokens_details.accepted_prediction_tokens == 0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": "gpt-4o"}, "'gpt-4o' is not served here"),
        ({"messages": []}, "messages: List should have at least 1 item"),
        ({"temperature": 3.0}, "temperature: Input should be less than or equal to 2"),
        ({"top_logprobs": 2}, "top_logprobs needs logprobs"),
        ({"n": 99}, "n=99 is more than the 8"),
        ({"n": 2, "temperature": 0}, "n=2 at temperature 0"),
        ({"logit_bias": {"x": 1}}, "keys must be token ids"),
        ({"logit_bias": {"99999999": 1}}, "99999999"),
        ({"extra_body": {"temprature": 1}}, "unknown parameter 'temprature'. Did you mean temperature"),
        ({"extra_body": {"speculation": "fast"}}, "speculation='fast' is not a mode"),
        ({"extra_body": {"stream_options": {"include_usage": True}}}, "stream_options is only for stream"),
        ({"messages": [{"role": "user", "content": "x " * 20_000}]}, "the context is"),
    ],
)
def test_refusals_are_openais_errors_and_say_what_is_wrong(
    client: openai.OpenAI, fields: dict[str, Any], message: str
) -> None:
    asked = {"model": MODEL, "messages": ASK, "max_tokens": 5, **fields}
    with pytest.raises(openai.APIStatusError) as caught:
        client.chat.completions.create(**asked)
    assert caught.value.status_code in (400, 404)
    assert message in caught.value.message
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["type"] in ("invalid_request_error", "not_found_error")


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b'{"model": "\xff\xfe"}', 400),
        (b"[" * 100_000, 400),
        (b'{"a":' * 50_000, 400),
        (b"null", 400),
        (b'{"model": "' + b"x" * (5 << 20) + b'"}', 413),
    ],
)
def test_bodies_that_are_no_request(url: str, content: bytes, status: int) -> None:
    answer = httpx.post(f"{url}/v1/chat/completions", content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == status
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_a_body_without_a_declared_length_is_bounded_too(url: str) -> None:
    def endless() -> Any:
        for _ in range(200):
            yield b"x" * (64 << 10)

    assert httpx.post(f"{url}/v1/chat/completions", content=endless()).status_code == 413


def test_who_sends_too_much_is_told_so_and_not_cut_off(url: str) -> None:
    """A server that answers and hangs up while a body still comes has its answer thrown away by the client's system."""

    def post(_: int) -> int:
        return httpx.post(f"{url}/v1/chat/completions", content=b"x" * (5 << 20), timeout=30).status_code

    with ThreadPoolExecutor(12) as pool:
        assert list(pool.map(post, range(36))) == [413] * 36


def test_a_client_that_leaves_frees_its_blocks(url: str, engine: Engine) -> None:
    body = {"model": MODEL, "messages": ASK, "max_tokens": 2_000, "ignore_eos": True, "temperature": 0}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json={**body, "stream": True}) as answer:
        lines = answer.iter_lines()
        while '"content": "' not in next(lines).replace('"content": ""', ""):
            pass
        assert engine.gauges().running == 1
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{url}/v1/chat/completions", json=body, timeout=0.5)
    for _ in range(100):
        gauges = engine.gauges()
        if not gauges.running and not gauges.kv_used:
            break
        time.sleep(0.05)
    assert (gauges.running, gauges.waiting, gauges.kv_used) == (0, 0, 0)


def test_a_queue_that_is_full_says_when_to_come_again(url: str, engine: Engine) -> None:
    handles = []
    try:
        with pytest.raises(QueueFull):
            handles.extend(engine.stream(chat("Go on."), max_tokens=500, ignore_eos=True) for _ in range(10_000))
        answer = httpx.post(f"{url}/v1/chat/completions", json={"model": MODEL, "messages": ASK})
        assert answer.status_code == 429
        assert int(answer.headers["Retry-After"]) >= 1
        assert answer.json()["error"]["type"] == "rate_limit_error"
    finally:
        for handle in handles:
            handle.cancel()


def test_keys_tenants_and_admins(start: Start, engine: Engine) -> None:
    import hashlib

    hashed = "sha256:" + hashlib.sha256(b"second").hexdigest()
    url = start(ServerConfig(api_keys=("first", hashed), admin_keys=("root",)))

    def ask(path: str, key: str | None, method: str = "GET", **fields: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return httpx.request(method, url + path, headers=headers, timeout=30, **fields)

    for key, status in ((None, 401), ("wrong", 401), ("first", 200), ("second", 200), ("root", 200)):
        assert ask("/v1/models", key).status_code == status
    assert ask("/v1/models", None).headers["WWW-Authenticate"] == "Bearer"
    for path in ("/health", "/ready", "/metrics", "/"):
        assert ask(path, None).status_code == 200
    wish = {"speculation": "fixed:3"}
    assert ask("/v1/speculation", "first", "PATCH", json=wish).status_code == 401
    assert ask("/v1/speculation", "root", "PATCH", json={"speculation": "fast"}).status_code == 400
    try:
        changed = ask("/v1/speculation", "root", "PATCH", json=wish)
        assert changed.json()["speculation"] == "fixed:3"
        assert engine.settings.speculation == "fixed:3"
    finally:
        ask("/v1/speculation", "root", "PATCH", json={"speculation": "auto"})
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Tell me of Zanzibar."}], "temperature": 0}
    assert engine.store is not None
    before = dict(engine.store.tokens)
    assert ask("/v1/chat/completions", "first", "POST", json={**body, "max_tokens": 20}).status_code == 200
    quiet = {**body, "max_tokens": 20, "remember": False}
    assert ask("/v1/chat/completions", "second", "POST", json=quiet).status_code == 200
    new = [tenant for tenant, count in engine.store.tokens.items() if before.get(tenant) != count]
    assert new == [hashlib.sha256(b"first").hexdigest()[:16]]


def test_metrics_and_speculation_state(client: openai.OpenAI, url: str) -> None:
    client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": f"Repeat: {QUOTE} {QUOTE}"}], temperature=0, max_tokens=40
    )
    text = httpx.get(f"{url}/metrics").text
    for name in (
        "outrider_up 1.0",
        "outrider_requests_total",
        "outrider_time_to_first_token_seconds_bucket",
        "outrider_inter_token_seconds_count",
        'outrider_accepted_at_position_total{position="0"',
        'outrider_guard_events_total{event="losing"}',
        "outrider_kv_blocks ",
        'outrider_pass_seconds{width="1"}',
        'outrider_proposer_faults_total{proposer="suffix"} 0.0',
    ):
        assert name in text
    state = httpx.get(f"{url}/v1/speculation").json()
    assert state["control"]["steps"] > 0
    assert set(state["proposers"]) <= {"prediction", "suffix", "lookup"}


def test_events_for_the_page(url: str) -> None:
    with httpx.stream("GET", f"{url}/v1/events", timeout=10) as answer:
        line = next(line for line in answer.iter_lines() if line.startswith("data: "))
    assert {"tokens_per_second", "acceptance", "running", "kv_blocks"} <= set(json.loads(line[6:]))


def test_the_page_asks_no_other_server_and_has_no_inline_script(url: str) -> None:
    page = httpx.get(url + "/")
    policy = page.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for path in ("/", "/static/app.js", "/static/style.css", "/favicon.ico"):
        found = httpx.get(url + path)
        assert found.status_code == 200
        assert "http" not in found.text.replace("http://www.w3.org/2000/svg", "")
    assert "<script>" not in page.text
    assert "onclick" not in page.text


def test_nothing_of_a_prompt_is_logged(client: openai.OpenAI, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger="outrider")
    client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "The word is xylophone."}], max_tokens=5
    )
    assert "xylophone" not in caplog.text


# --- forms of answers ---

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["celsius", "fahrenheit"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "Weather of a city.", "parameters": CITY}}
NEWS = {"type": "function", "function": {"name": "news", "description": "The news."}}
WHERE = [{"role": "user", "content": "What is the weather in Paris? Use celsius."}]


def test_json_schema_and_json_object(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"model": MODEL, "messages": WHERE, "temperature": 0, "max_tokens": 80}
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY, "strict": True}}
    texts = {
        client.chat.completions.create(**fields, response_format=form, extra_body={"speculation": mode})
        .choices[0]
        .message.content
        for mode in ("off", "auto", "fixed:5")
    }
    assert len(texts) == 1
    assert set(json.loads(texts.pop() or "")) == {"city", "unit"}
    anything = client.chat.completions.create(**{**fields, "max_tokens": 6}, response_format={"type": "json_object"})
    assert (anything.choices[0].message.content or "").lstrip().startswith("{")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_call_that_must_be_made(client: openai.OpenAI, choice: Any) -> None:
    fields: dict[str, Any] = {"model": MODEL, "messages": WHERE, "temperature": 0, "max_tokens": 80}
    tools = [WEATHER] if choice == "required" else [NEWS, WEATHER]
    whole = client.chat.completions.create(**fields, tools=tools, tool_choice=choice).choices[0]
    assert whole.finish_reason == "tool_calls"
    assert whole.message.content is None
    (call,) = whole.message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "weather"
    arguments = json.loads(call.function.arguments)
    assert arguments["unit"] in ("celsius", "fahrenheit")
    chunks = list(client.chat.completions.create(**fields, tools=tools, tool_choice=choice, stream=True))
    calls = [c.choices[0].delta.tool_calls for c in chunks if c.choices[0].delta.tool_calls]
    assert len(calls) == 1
    assert calls[0][0].function is not None
    assert json.loads(calls[0][0].function.arguments or "") == arguments
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    assert not any(c.choices[0].delta.content for c in chunks)


def test_a_call_that_may_be_made_and_the_conversation_after_one(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_tokens": 30, "tools": [WEATHER, NEWS]}
    free = client.chat.completions.create(**fields, messages=ASK).choices[0]
    assert bool(free.message.tool_calls) != bool(free.message.content)
    streamed = client.chat.completions.create(**fields, messages=ASK, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in streamed)
    assert text == (free.message.content or "")
    made = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}
    after = [
        *WHERE,
        {"role": "assistant", "content": None, "tool_calls": [made]},
        {"role": "tool", "tool_call_id": "call_1", "content": "21 degrees, sunny"},
    ]
    said = client.chat.completions.create(**fields, messages=after, tool_choice="none").choices[0]
    assert said.message.content
    assert said.message.tool_calls is None


def test_a_call_that_is_cut_short_is_no_call(client: openai.OpenAI) -> None:
    cut = client.chat.completions.create(
        model=MODEL, messages=WHERE, temperature=0, max_tokens=4, tools=[WEATHER], tool_choice="required"
    ).choices[0]
    assert cut.finish_reason == "length"
    assert cut.message.tool_calls is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tool_choice": "required"}, "tool_choice needs tools"),
        ({"tools": [NEWS], "tool_choice": {"type": "function", "function": {"name": "x"}}}, "there is no tool 'x'"),
        ({"tools": [NEWS], "response_format": {"type": "json_object"}}, "tools or a response_format, not both"),
        ({"response_format": {"type": "json_schema"}}, "json_schema goes with type json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "thing"}}}},
            "the json_schema cannot be used",
        ),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "should match pattern"),
        ({"messages": [{"role": "assistant"}]}, "a message of assistant has no content"),
    ],
)
def test_forms_that_cannot_be(client: openai.OpenAI, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**{"model": MODEL, "messages": ASK, "max_tokens": 5, **fields})
    assert message in caught.value.message
