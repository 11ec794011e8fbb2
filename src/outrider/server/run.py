"""Running the server: signals, draining, slow heads, and an end that frees everything."""

from __future__ import annotations

import asyncio
import logging
import sys
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from outrider.api import Engine
from outrider.server.app import create_app
from outrider.server.config import ServerConfig

log = logging.getLogger("outrider")

ENGINE_DIED = 70
"""Exit status of a server whose engine died (EX_SOFTWARE)."""
_SWITCH_SECONDS = 0.0005
"""How long a thread keeps the interpreter when another waits for it; Python's own is ten times that."""


class _Server(uvicorn.Server):
    """The first signal drains: not ready, no new answers, open ones go on for a while. The second one stops at once.

    Args:
        settings: uvicorn's.
        engine: whose death ends the server; None for one that stays.
    """

    def __init__(self, settings: uvicorn.Config, engine: Engine | None) -> None:
        super().__init__(settings)
        self._watched = engine
        self.engine_died = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 (uvicorn's names)
        self._drain()
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True

    def _drain(self) -> None:
        app = self.config.loaded_app
        while not hasattr(app, "state") and hasattr(app, "app"):
            app = app.app
        app.state.server.draining = True

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second."""
        if self._watched is not None and not self.engine_died and not self._watched.alive and not self.should_exit:
            log.error("the engine died; the server ends, to be started again")
            self.engine_died = True
            self._drain()
            self.should_exit = True
        return await super().on_tick(counter)


def head_in_time(seconds: float) -> type[H11Protocol]:
    """A protocol that hangs up on clients that do not send a request's head whole within so many seconds."""

    class Protocol(H11Protocol):
        _patience: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._patience = self.loop.call_later(seconds, self._hang_up)

        def handle_events(self) -> None:
            super().handle_events()
            if self.cycle is not None and self._patience is not None:  # a head came; uvicorn watches idle connections
                self._patience.cancel()
                self._patience = None

        def connection_lost(self, exc: Exception | None) -> None:
            if self._patience is not None:
                self._patience.cancel()
            super().connection_lost(exc)

        def _hang_up(self) -> None:
            if self.cycle is None and not self.transport.is_closing():
                self.transport.close()

    return Protocol


def serve(engine: Engine, config: ServerConfig) -> None:
    """Serve until a signal says to stop; the engine is closed then.

    Raises:
        SystemExit: with status 70, the engine died and the settings say to exit.
    """
    app = create_app(engine, config)
    settings = uvicorn.Config(
        app,
        host=config.host,
        port=config.port,
        http=head_in_time(config.header_timeout),
        log_level="warning",
        timeout_graceful_shutdown=int(config.drain) or None,
        timeout_keep_alive=15,
        h11_max_incomplete_event_size=64 << 10,
    )
    # what an answer's first token waits for otherwise is the engine's thread, which drafts for the second one
    sys.setswitchinterval(_SWITCH_SECONDS)
    server = _Server(settings, engine if config.on_engine_death == "exit" else None)
    try:
        server.run()
    finally:
        spans = app.state.server.spans
        if spans is not None:
            spans.close()
        engine.close()
    if server.engine_died:
        raise SystemExit(ENGINE_DIED)
