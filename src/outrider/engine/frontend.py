"""Queues around the step loop: one thread owns the model, callers are synchronous or asyncio."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from itertools import count
from typing import Any, Self, TypeVar

from outrider.engine.config import EngineConfig
from outrider.engine.core import EngineCore
from outrider.engine.outputs import Chunk, Completion, Generation
from outrider.engine.request import Request
from outrider.engine.stats import EngineStats, Gauges, StepRecord
from outrider.errors import EngineClosed, QueueFull
from outrider.params import SamplingParams, Speculation
from outrider.verify import Constraint

log = logging.getLogger("outrider")

_Command = Callable[[], None]
_Item = Chunk | EngineClosed
_T = TypeVar("_T")


class Handle:
    """One open request. Iterate it for chunks, or ask for the `result`; `cancel` it at any moment.

    Leaving an iteration early cancels the request.
    """

    def __init__(self, request: Request, cancel: Callable[[str], None]) -> None:
        self.request = request
        self._cancel = cancel
        self._chunks: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self._open = request.params.n  # completions that the reader has not seen the end of
        self.unfinished = request.params.n
        """Completions that the engine's thread has not ended; that thread's own count."""

    @property
    def id(self) -> str:
        """The request's id."""
        return self.request.id

    def put(self, item: _Item) -> None:
        """Take an item from the engine's thread."""
        self._chunks.put(item)

    def cancel(self) -> None:
        """End the request within one step; its last chunk says `cancelled`."""
        self._cancel(self.id)

    def __iter__(self) -> Iterator[Chunk]:
        try:
            while self._open:
                yield self._take(self._chunks.get())
        finally:
            if self._open:
                self.cancel()

    def result(self) -> Generation:
        """Wait for every completion.

        Raises:
            EngineClosed: the engine was closed or died first.
        """
        result = _empty(self.request)
        for chunk in self:
            result.completions[chunk.index].add(chunk)
        return result

    def _take(self, item: _Item) -> Chunk:
        if isinstance(item, EngineClosed):
            self._open = 0
            raise item
        self._open -= item.finish_reason is not None
        return item


class AsyncHandle(Handle):
    """The asyncio twin of `Handle`."""

    def __init__(self, request: Request, cancel: Callable[[str], None], loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(request, cancel)
        self._loop = loop
        self._waiting: asyncio.Queue[_Item] = asyncio.Queue()

    def put(self, item: _Item) -> None:
        """Take an item from the engine's thread."""
        try:
            self._loop.call_soon_threadsafe(self._waiting.put_nowait, item)
        except RuntimeError:  # the loop was closed: nobody waits any more
            self.cancel()

    async def chunks(self) -> AsyncGenerator[Chunk]:
        """The chunks as they come; leaving early, or cancelling the task, cancels the request."""
        try:
            while self._open:
                yield self._take(await self._waiting.get())
        finally:
            if self._open:
                self.cancel()

    async def result_async(self) -> Generation:
        """Wait for every completion; see `Handle.result`."""
        result = _empty(self.request)
        chunks = self.chunks()
        try:
            async for chunk in chunks:
                result.completions[chunk.index].add(chunk)
        finally:
            await chunks.aclose()
        return result


def _empty(request: Request) -> Generation:
    completions = [Completion(index) for index in range(request.params.n)]
    return Generation(request.id, list(request.prompt), request.seed, completions)


class EngineThread:
    """Runs an `EngineCore` in a thread of its own. Everything here may be called from any thread.

    Args:
        core: the engine; nobody else may touch it from now on.
    """

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._inbox: queue.SimpleQueue[_Command | None] = queue.SimpleQueue()
        self._handles: dict[str, Handle] = {}
        self._lock = threading.Lock()  # guards _handles and _closed
        self._closed: EngineClosed | None = None
        self._numbers = count()
        self._thread = threading.Thread(target=self._run, name="outrider-engine", daemon=True)
        self._thread.start()

    # --- any thread ------------------------------------------------------------------------------------------

    @property
    def stats(self) -> EngineStats:
        """Running totals; read only."""
        return self._core.stats

    def snapshot(self) -> EngineStats:
        """A copy of the totals, taken between two steps, so that finished requests are wholly counted.

        Raises:
            EngineClosed: the engine was closed or died.
        """
        return self._between_steps(self._core.stats.copy)

    def gauges(self) -> Gauges:
        """What is held now; raises as `snapshot` does."""
        return self._between_steps(self._core.gauges)

    def set_mode(self, **fields: Any) -> EngineConfig:
        """Change fields of the engine's settings that say how requests that do not choose speculate.

        Raises:
            InvalidRequest: a value that is none.
            EngineClosed: the engine was closed or died.
        """
        config = EngineConfig(**{**self._core.config.model_dump(), **fields})
        self._between_steps(lambda: self._core.set_mode(config))
        return config

    def trace(self, request: str) -> list[StepRecord]:
        """The kept steps in which a request decoded; raises as `snapshot` does."""
        return self._between_steps(lambda: self._core.stats.trace(request))

    def _between_steps(self, look: Callable[[], _T]) -> _T:
        """Have the engine's thread look at its own state."""
        taken: queue.SimpleQueue[_T] = queue.SimpleQueue()
        with self._lock:
            if self._closed is not None:
                raise self._closed
            self._inbox.put(lambda: taken.put(look()))
        while True:
            try:
                return taken.get(timeout=0.2)
            except queue.Empty:
                if self._closed is not None:
                    raise self._closed from None

    @property
    def settings(self) -> EngineConfig:
        """The engine's settings as they are now."""
        return self._core.config

    @property
    def alive(self) -> bool:
        """Whether requests are taken."""
        return self._closed is None

    def request(
        self,
        prompt: list[int],
        params: SamplingParams,
        *,
        prompt_text: str | None = None,
        speculation: str | Mapping[str, Any] | Speculation | None = None,
        prediction: Iterable[int] = (),
        grammar: Callable[[], Constraint] | None = None,
        tenant: str | None = "",
        timeout: float | None = None,
    ) -> Request:
        """Make a request and check it.

        Raises:
            InvalidRequest: it cannot be honoured.
        """
        request = Request(
            id=f"r{next(self._numbers)}",
            prompt=tuple(prompt),
            params=params,
            prompt_text=prompt_text,
            speculation=(
                self._core.config.complete(Speculation.parse(speculation)) if speculation is not None else None
            ),
            prediction=tuple(prediction),
            grammar=grammar,
            tenant=tenant,
            timeout=timeout,
        )
        self._core.check(request)
        return request

    def submit(self, request: Request) -> Handle:
        """Queue a request.

        Raises:
            QueueFull: too many wait already.
            EngineClosed: the engine was closed or died.
        """
        return self._enqueue(Handle(request, self._cancel))

    def submit_async(self, request: Request) -> AsyncHandle:
        """Queue a request whose chunks go to the running asyncio loop; raises as `submit` does."""
        handle = AsyncHandle(request, self._cancel, asyncio.get_running_loop())
        self._enqueue(handle)
        return handle

    def close(self) -> None:
        """End open requests, stop the thread, free the model. Safe to call twice."""
        self._inbox.put(None)
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _enqueue(self, handle: Handle) -> Handle:
        core, request = self._core, handle.request
        arrived = core.clock()
        with self._lock:
            if self._closed is not None:
                raise self._closed
            limits = core.config
            if len(self._handles) >= limits.max_running + limits.max_queue:
                raise QueueFull(
                    f"{len(self._handles)} requests are open, which is max_running={limits.max_running} "
                    f"and max_queue={limits.max_queue}; try again later"
                )
            self._handles[request.id] = handle

            def add() -> None:
                core.add(request, self._sink, arrived)

            self._inbox.put(add)
        return handle

    def _cancel(self, request_id: str) -> None:
        self._inbox.put(lambda: self._core.cancel(request_id))

    # --- the engine's thread ---------------------------------------------------------------------------------

    def _sink(self, chunk: Chunk) -> None:
        handle = self._handles.get(chunk.request)
        if handle is None:
            return
        handle.put(chunk)
        handle.unfinished -= chunk.finish_reason is not None
        if handle.unfinished == 0:
            with self._lock:
                del self._handles[chunk.request]

    def _run(self) -> None:
        reason = EngineClosed("the engine was closed")
        try:
            while self._obey():
                self._core.step()
        except Exception as error:
            log.exception("the engine's thread died")
            reason = EngineClosed(f"the engine died: {error!r}; start it again")
        with self._lock:
            self._closed = reason
            orphans = list(self._handles.values())
            self._handles.clear()
        for handle in orphans:
            handle.put(reason)
        self._core.runner.close()

    def _obey(self) -> bool:
        """Run the commands that wait, sleeping while there is nothing to do; False says to stop."""
        while True:
            try:
                command = self._inbox.get(block=not self._core.has_work)
            except queue.Empty:
                return True
            if command is None:
                return False
            command()
