"""Two servers side by side: a right one passes, and each kind of wrong one is caught."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from outrider import cli
from outrider.errors import InvalidRequest
from outrider.evaluate.endpoints import Endpoint, EndpointValidation, validate_endpoints
from outrider.evaluate.prompts import BenchPrompt

RUN = CliRunner()
PROMPTS = [BenchPrompt(str(i), "x", f"question {i}") for i in range(4)]
WORDS = ["the ", "tide ", "comes ", "and ", "goes ", "twice ", "a ", "day"]


class Stub:
    """A server whose answers a test can bend.

    Args:
        words: of an answer to a prompt.
        behind: how far the next likeliest token is behind.
        shift: added to log-probabilities.
        spread: how many words the first one of a drawn answer is drawn from.
        together: words in a chunk.
        logprobs: whether it gives any.
    """

    def __init__(
        self,
        words: Callable[[str], Sequence[str]] = lambda prompt: [*WORDS, prompt],
        *,
        behind: float = 3.0,
        shift: float = 0.0,
        spread: int = 3,
        together: int = 1,
        logprobs: bool = True,
    ) -> None:
        stub = self
        rng = random.Random(5)

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._json({"data": [{"id": "stub"}]})

            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if asked.get("logprobs") and not logprobs:
                    self._json({"error": {"message": "logprobs are not supported"}}, 400)
                elif asked.get("stream"):
                    self._stream(words(asked["messages"][0]["content"])[: asked["max_tokens"]], asked)
                else:
                    drawn = [f"{rng.randrange(spread)} x" for _ in range(asked["n"])]
                    self._json({"choices": [{"message": {"content": text}} for text in drawn]})

            def _json(self, body: Any, status: int = 200) -> None:
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def _stream(self, said: Sequence[str], asked: dict[str, Any]) -> None:
                self.send_response(200)
                self.end_headers()
                for start in range(0, len(said), together):
                    part = said[start : start + together]
                    choice: dict[str, Any] = {"delta": {"content": "".join(part)}}
                    if asked.get("logprobs"):
                        top = [{"token": "other", "logprob": -0.1 + shift - behind}]
                        choice["logprobs"] = {
                            "content": [{"token": w, "logprob": -0.1 + shift, "top_logprobs": top} for w in part]
                        }
                    self._event({"choices": [choice]})
                    time.sleep(0.002 * together)
                self._event({"choices": [{"delta": {}, "finish_reason": "stop"}]})
                self.wfile.write(b"data: [DONE]\n\n")

            def _event(self, body: Any) -> None:
                self.wfile.write(f"data: {json.dumps(body)}\n\n".encode())

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        stub.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    url: str

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def stub() -> Iterator[Callable[..., str]]:
    made: list[Stub] = []

    def make(*args: Any, **fields: Any) -> str:
        made.append(Stub(*args, **fields))
        return made[-1].url

    yield make
    for each in made:
        each.close()


def other(prompt: str) -> list[str]:
    """One word in the middle is another."""
    return [*WORDS[:3], "or ", *WORDS[4:], prompt]


def check(one: str, two: str, **fields: Any) -> EndpointValidation:
    return validate_endpoints(Endpoint(one), Endpoint(two), PROMPTS, **{"draws": 40, **fields})


def failed(found: EndpointValidation) -> set[str]:
    return {each.name for each in found.checks if not each.passed}


def test_servers_that_agree_pass(stub: Callable[..., str]) -> None:
    found = check(stub(), stub(together=3), seeded=True)
    assert found.passed
    assert {each.name for each in found.checks} == {
        "greedy text", "log-probabilities", "seeded text", "distribution of the first tokens",
    }  # fmt: skip
    assert found.timing["speculative"].tokens_per_second > 0
    assert found.speedup > 0


def test_another_word_that_was_no_tie_is_an_error(stub: Callable[..., str]) -> None:
    found = check(stub(), stub(other))
    assert failed(found) == {"greedy text"}
    assert "token 3: 'or ' instead of 'and '" in found.checks[0].failures[0]


def test_another_word_within_rounding_is_a_tie(stub: Callable[..., str]) -> None:
    found = check(stub(behind=0.01), stub(other))
    assert found.passed
    assert found.checks[0].ties == len(PROMPTS)


def test_text_behind_the_end_is_an_error(stub: Callable[..., str]) -> None:
    found = check(stub(), stub(lambda prompt: [*WORDS, prompt, " more"]))
    assert failed(found) == {"greedy text"}


def test_log_probabilities_of_other_positions_are_an_error(stub: Callable[..., str]) -> None:
    assert failed(check(stub(), stub(shift=-0.5))) == {"log-probabilities"}


def test_another_distribution_is_an_error(stub: Callable[..., str]) -> None:
    found = check(stub(), stub(spread=1), draws=120)
    assert failed(found) == {"distribution of the first tokens"}


def test_a_server_without_log_probabilities_is_compared_by_text(stub: Callable[..., str]) -> None:
    assert check(stub(logprobs=False), stub(logprobs=False)).passed
    found = check(stub(logprobs=False), stub(other, logprobs=False))
    assert "no log-probabilities to judge it by" in found.checks[0].failures[0]


def test_worse_quality_is_an_error_and_equal_is_none(stub: Callable[..., str]) -> None:
    references = {prompt.id: "".join([*WORDS, prompt.text]) for prompt in PROMPTS}
    bad = stub(lambda prompt: ["nothing ", "of ", "it"], behind=0.0)
    found = check(stub(behind=0.0), bad, references=references, tolerance=9.0)
    assert failed(found) == {"quality"}
    assert found.quality["rougeL"]["baseline"].mean == 1.0
    assert found.quality["exact match"]["speculative"].mean == 0.0
    same = check(stub(), stub(), references=references, judge=["/bin/sh", "-c", "grep -q tide"])
    assert same.passed
    assert same.quality["judge"]["speculative"].mean == 1.0


def test_the_command_writes_pages_and_its_status_says_the_verdict(stub: Callable[..., str], tmp_path: Path) -> None:
    prompts, page, junit = tmp_path / "p.jsonl", tmp_path / "v.html", tmp_path / "v.xml"
    prompts.write_text("".join(json.dumps({"prompt": p.text}) + "\n" for p in PROMPTS))
    one, two = stub(), stub(other)
    args = ["validate", "--prompts", str(prompts), "--draws", "40", "--html", str(page), "--junit", str(junit)]
    args += ["--per-category", "4"]
    good = RUN.invoke(cli.app, [*args, "--baseline-url", one, "--speculative-url", one])
    assert good.exit_code == 0, good.output
    assert "x as fast" in good.stdout
    bad = RUN.invoke(cli.app, [*args, "--baseline-url", one, "--speculative-url", two])
    assert bad.exit_code == 1
    text = page.read_text()
    assert "FAILED" in text
    assert "<script" not in text
    assert 'failures="1"' in junit.read_text()


def test_refusals(stub: Callable[..., str], tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="is no address"):
        Endpoint("localhost:8000")
    with pytest.raises(InvalidRequest, match="cannot be reached"):
        Endpoint("http://127.0.0.1:9/v1")
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"prompt": "x"}\n')
    done = RUN.invoke(cli.app, ["validate", "--prompts", str(prompts), "--baseline-url", stub()])
    assert "or neither" in str(done.exception)
