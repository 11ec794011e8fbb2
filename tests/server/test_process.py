"""The server as a process: signals, and what is left of open answers."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import httpx
import pytest

from outrider.models import ModelFiles

pytestmark = pytest.mark.model
BODY = {
    "model": "smollm2-135m",
    "messages": [{"role": "user", "content": "Tell me about the sea."}],
    "temperature": 0,
    "max_tokens": 60,
    "ignore_eos": True,
    "stream": True,
}


@pytest.fixture
def server(smollm2: ModelFiles) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A server in a process of its own, ready."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "outrider", "serve", "--port", str(port), "--kv-memory", "128M"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            assert process.poll() is None, process.stdout and process.stdout.read()
            try:
                if httpx.get(f"{url}/ready").status_code == 200:
                    break
            except httpx.TransportError:
                time.sleep(0.1)
        yield process, url
    finally:
        process.kill()
        process.communicate()


def test_a_signal_under_load_lets_open_answers_end(server: tuple[subprocess.Popen[bytes], str]) -> None:
    process, url = server
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=BODY, timeout=60) as answer:
        lines = answer.iter_lines()
        next(lines)
        process.send_signal(signal.SIGTERM)
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert process.wait(20) == 0


def test_a_second_signal_stops_at_once(server: tuple[subprocess.Popen[bytes], str]) -> None:
    process, url = server
    endless = {**BODY, "max_tokens": 4_000}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=endless, timeout=60) as answer:
        next(answer.iter_lines())
        process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        assert process.poll() is None  # it drains
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) is not None


def test_a_client_that_is_killed_frees_its_blocks(server: tuple[subprocess.Popen[bytes], str]) -> None:
    _, url = server
    script = (
        "import httpx, sys\n"
        f"with httpx.stream('POST', '{url}/v1/chat/completions', json={ {**BODY, 'max_tokens': 4_000} }) as answer:\n"
        "    for line in answer.iter_lines():\n"
        "        print(line, flush=True)\n"
    )
    client = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert client.stdout is not None
    client.stdout.readline()
    client.kill()
    client.communicate()
    for _ in range(100):
        text = httpx.get(f"{url}/metrics").text
        if "outrider_kv_blocks_used 0.0" in text and "outrider_running_sequences 0.0" in text:
            return
        time.sleep(0.1)
    raise AssertionError("the killed client's answer goes on")
