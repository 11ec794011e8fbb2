"""The thread and its queues: many callers, cancellation, bounds, death."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from outrider.engine import EngineConfig, EngineCore, EngineThread
from outrider.errors import EngineClosed, InvalidRequest, QueueFull
from outrider.params import SamplingParams
from outrider.proposers import PromptLookup
from outrider.runners import Logits, Segment
from outrider.testing import ByteCodec, ScriptedRunner


class GatedRunner(ScriptedRunner):
    """A runner that waits before every pass while its gate is shut."""

    def __init__(self) -> None:
        super().__init__(context_length=4096, num_blocks=4096)
        self.gate = threading.Event()
        self.gate.set()
        self.dies = False

    def forward(self, segments: list[Segment]) -> Logits:  # type: ignore[override]
        assert self.gate.wait(20)
        if self.dies:
            raise RuntimeError("out of order")
        return super().forward(segments)


def build(runner: ScriptedRunner, **config: int) -> tuple[EngineThread, EngineCore]:
    core = EngineCore(runner, ByteCodec(), proposers=[PromptLookup()], config=EngineConfig(**config))
    return EngineThread(core), core


@pytest.fixture
def runner() -> GatedRunner:
    return GatedRunner()


@pytest.fixture
def engine(runner: GatedRunner) -> Iterator[EngineThread]:
    thread, core = build(runner, max_running=4, max_queue=2)
    yield thread
    runner.gate.set()
    thread.close()
    assert core.pool.used == 0 or runner.dies
    assert runner.closed


def eventually(condition: Callable[[], bool]) -> None:
    for _ in range(2_000):
        if condition():
            return
        time.sleep(0.005)
    raise AssertionError("it did not come true")


def ask(engine: EngineThread, **fields: object) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 20, **fields})


@pytest.mark.parametrize("kept", [0, 3, 4096])
def test_as_many_steps_are_kept_for_the_trace_as_were_asked_for(kept: int) -> None:
    thread, _ = build(GatedRunner(), trace_steps=kept)
    try:
        request = thread.request([1], SamplingParams(max_tokens=9, ignore_eos=True), speculation="off")
        answer = thread.submit(request).result()
        steps = thread.trace(answer.request)
        assert [step.requests[0].position for step in steps] == list(range(1, 9))[-kept:] * (kept > 0)
        assert thread.stats.steps == 9  # the totals know of all
    finally:
        thread.close()


def test_many_threads_get_their_own_answers(engine: EngineThread) -> None:
    alone = [engine.submit(engine.request([i + 1], ask(engine))).result().token_ids for i in range(6)]
    answers: dict[int, list[int]] = {}

    def call(i: int) -> None:
        answers[i] = engine.submit(engine.request([i + 1], ask(engine))).result().token_ids

    threads = [threading.Thread(target=call, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answers[i] for i in range(6)] == alone


def test_a_stream_is_the_answer_in_pieces(engine: EngineThread) -> None:
    handle = engine.submit(engine.request([65], ask(engine)))
    chunks = list(handle)
    assert len(chunks) > 1
    assert [token.id for chunk in chunks for token in chunk.tokens] == engine.submit(
        engine.request([65], ask(engine))
    ).result().token_ids
    assert chunks[-1].finish_reason == "length"
    assert chunks[-1].usage is not None


def test_the_queue_is_bounded_and_refuses_with_numbers(engine: EngineThread, runner: GatedRunner) -> None:
    runner.gate.clear()
    handles = [engine.submit(engine.request([1], ask(engine))) for _ in range(6)]
    with pytest.raises(QueueFull, match="6 requests are open, which is max_running=4 and max_queue=2"):
        engine.submit(engine.request([1], ask(engine)))
    runner.gate.set()
    assert all(len(handle.result().token_ids) == 20 for handle in handles)
    assert len(engine.submit(engine.request([1], ask(engine))).result().token_ids) == 20


def test_leaving_a_stream_cancels_the_request(engine: EngineThread) -> None:
    handle = engine.submit(engine.request([65], ask(engine, max_tokens=None)))
    for _ in handle:
        break
    eventually(lambda: not engine._core.has_work)


def test_a_forgotten_stream_is_cancelled(engine: EngineThread) -> None:
    def start() -> None:
        iterator = iter(engine.submit(engine.request([65], ask(engine, max_tokens=None))))
        next(iterator)

    start()
    gc.collect()
    eventually(lambda: not engine._core.has_work)


def test_cancel_from_another_thread(engine: EngineThread) -> None:
    handle = engine.submit(engine.request([65], ask(engine, max_tokens=None)))
    threading.Timer(0.05, handle.cancel).start()
    answer = handle.result()
    assert answer.finish_reason == "cancelled"
    assert answer.token_ids


def test_the_engine_dies_and_says_so(engine: EngineThread, runner: GatedRunner) -> None:
    handle = engine.submit(engine.request([65], ask(engine, max_tokens=None)))
    chunks = iter(handle)
    next(chunks)
    runner.dies = True
    with pytest.raises(EngineClosed, match="out of order"):
        list(chunks)
    eventually(lambda: not engine.alive)
    with pytest.raises(EngineClosed, match="out of order"):
        engine.submit(engine.request([65], ask(engine)))
    with pytest.raises(EngineClosed):
        engine.snapshot()


def test_close_ends_open_requests(runner: GatedRunner) -> None:
    engine, _ = build(runner)
    handle = engine.submit(engine.request([65], ask(engine, max_tokens=None)))
    chunks = iter(handle)
    next(chunks)
    engine.close()
    engine.close()
    with pytest.raises(EngineClosed, match="was closed"):
        list(chunks)


def test_a_snapshot_counts_finished_requests_wholly(engine: EngineThread) -> None:
    before = engine.snapshot()
    engine.submit(engine.request([65], ask(engine, max_tokens=7))).result()
    assert engine.snapshot().emitted - before.emitted == 7


def test_an_invalid_request_never_reaches_the_thread(engine: EngineThread) -> None:
    with pytest.raises(InvalidRequest, match="vocabulary"):
        engine.request([9_999], ask(engine))
    with pytest.raises(InvalidRequest, match="speculation='fast'"):
        engine.request([1], ask(engine), speculation="fast")


async def gather_answers(engine: EngineThread, count: int) -> list[list[int]]:
    handles = [engine.submit_async(engine.request([i + 1], ask(engine))) for i in range(count)]
    return [answer.token_ids for answer in await asyncio.gather(*(h.result_async() for h in handles))]


def test_asyncio_gives_the_same_answers(engine: EngineThread) -> None:
    alone = [engine.submit(engine.request([i + 1], ask(engine))).result().token_ids for i in range(5)]
    assert asyncio.run(gather_answers(engine, 5)) == alone


def test_cancelling_a_task_cancels_its_request(engine: EngineThread) -> None:
    async def main() -> None:
        handle = engine.submit_async(engine.request([65], ask(engine, max_tokens=None)))
        task = asyncio.create_task(handle.result_async())
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    eventually(lambda: not engine._core.has_work)


def test_leaving_an_async_stream_cancels_the_request(engine: EngineThread) -> None:
    async def main() -> None:
        chunks = engine.submit_async(engine.request([65], ask(engine, max_tokens=None))).chunks()
        async for _ in chunks:
            break
        await chunks.aclose()

    asyncio.run(main())
    eventually(lambda: not engine._core.has_work)


def test_a_loop_that_is_gone_does_not_kill_the_engine(engine: EngineThread) -> None:
    async def main() -> None:
        engine.submit_async(engine.request([65], ask(engine, max_tokens=None)))

    asyncio.run(main())
    eventually(lambda: not engine._core.has_work)
    assert engine.alive
