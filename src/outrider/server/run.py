"""Running the server: signals, draining, and an end that frees everything."""

from __future__ import annotations

from types import FrameType

import uvicorn

from outrider.api import Engine
from outrider.server.app import create_app
from outrider.server.config import ServerConfig


class _Server(uvicorn.Server):
    """The first signal drains: not ready, no new answers, open ones go on for a while. The second one stops at once."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 (uvicorn's names)
        app = self.config.loaded_app
        while not hasattr(app, "state") and hasattr(app, "app"):
            app = app.app
        app.state.server.draining = True
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True


def serve(engine: Engine, config: ServerConfig) -> None:
    """Serve until a signal says to stop; the engine is closed then."""
    app = create_app(engine, config)
    settings = uvicorn.Config(
        app,
        host=config.host,
        port=config.port,
        log_level="warning",
        timeout_graceful_shutdown=int(config.drain) or None,
        timeout_keep_alive=15,
        h11_max_incomplete_event_size=64 << 10,
    )
    try:
        _Server(settings).run()
    finally:
        engine.close()
