"""What several tests build: an engine over the scripted runner, proposers that are wrong, collected answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from outrider.engine import Chunk, Completion, EngineConfig, EngineCore, Request
from outrider.params import SamplingParams, Speculation
from outrider.proposers import Context, Draft, Proposer
from outrider.runners import Runner
from outrider.testing import ByteCodec, ScriptedRunner


class RandomProposer:
    """Drafts noise: nearly everything is rejected."""

    name = "random"

    def __init__(self, vocabulary: int, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self._vocabulary = vocabulary
        self.asked = 0
        self.released: list[str] = []

    def propose(self, contexts: Sequence[Context], budget: Sequence[int]) -> list[Draft]:
        self.asked += len(contexts)
        drafts = []
        for most in budget:
            size = int(self._rng.integers(0, most + 1))
            drafts.append(Draft(self._rng.integers(0, self._vocabulary, size).tolist(), [0.5] * size))
        return drafts

    def observe(self, request: str, tokens: Sequence[int]) -> None:
        pass

    def release(self, context: Context) -> None:
        self.released.append(context.request)


class OracleProposer(RandomProposer):
    """Drafts what the function says, cut to the budget: right, or wrong on purpose."""

    name = "oracle"

    def __init__(self, continuation: Callable[[list[int], int], list[int]]) -> None:
        super().__init__(1)
        self._continuation = continuation

    def propose(self, contexts: Sequence[Context], budget: Sequence[int]) -> list[Draft]:
        self.asked += len(contexts)
        drafts = []
        for context, most in zip(contexts, budget, strict=True):
            tokens = self._continuation(list(context.tokens), most)[:most]
            drafts.append(Draft(tokens, [0.9] * len(tokens)))
        return drafts


def perfect(script: Callable[[Sequence[int]], np.ndarray], **fields: Any) -> OracleProposer:
    """A proposer that knows the greedy continuation."""

    def continuation(tokens: list[int], most: int) -> list[int]:
        out: list[int] = []
        while len(out) < most:
            out.append(int(script([*tokens, *out]).argmax()))
        return out

    return OracleProposer(continuation, **fields)


class Harness:
    """An engine core whose chunks are collected, checked after every step."""

    def __init__(
        self,
        runner: Runner | None = None,
        *,
        proposer: Proposer | None = None,
        proposers: Sequence[Proposer] = (),
        codec: ByteCodec | None = None,
        eos_ids: tuple[int, ...] = (),
        clock: Callable[[], float] | None = None,
        **config: Any,
    ) -> None:
        self.runner = runner or ScriptedRunner()
        self.codec = codec or ByteCodec()
        extra = {"clock": clock} if clock is not None else {}
        self.core = EngineCore(
            self.runner,
            self.codec,
            eos_ids=eos_ids,
            proposers=[proposer] if proposer is not None else proposers,
            config=EngineConfig(**config),
            **extra,
        )
        self.answers: dict[str, list[Completion]] = {}
        self.chunks: list[Chunk] = []

    def add(
        self,
        prompt: Sequence[int] | str,
        name: str = "r",
        *,
        speculation: str | None = None,
        prediction: Sequence[int] = (),
        tenant: str | None = "",
        timeout: float | None = None,
        **params: Any,
    ) -> str:
        ids = tuple(prompt.encode() if isinstance(prompt, str) else prompt)
        request = Request(
            name,
            ids,
            SamplingParams(**params),
            speculation=Speculation.parse(speculation) if speculation else None,
            prediction=tuple(prediction),
            tenant=tenant,
            timeout=timeout,
            seed=0,
        )
        self.core.check(request)
        self.answers[name] = [Completion(index) for index in range(request.params.n)]
        self.core.add(request, self._take)
        return name

    def _take(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)
        completion = self.answers[chunk.request][chunk.index]
        assert completion.finish_reason is None, "a chunk after the last one"
        completion.add(chunk)

    def step(self) -> bool:
        done = self.core.step()
        self.core.check_integrity()
        return done

    def run(self, limit: int = 5_000) -> None:
        while self.core.has_work:
            assert self.step(), "open requests and nothing to do"
            limit -= 1
            assert limit, "the engine does not come to an end"
        assert self.core.pool.used == 0, "finished requests hold blocks"

    def answer(self, prompt: Sequence[int] | str, **fields: Any) -> Completion:
        name = self.add(prompt, f"r{len(self.answers)}", **fields)
        self.run()
        return self.answers[name][0]
