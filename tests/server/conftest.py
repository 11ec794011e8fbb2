"""A real server on a port of its own, over the session's engine."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
import uvicorn

from outrider.api import Engine
from outrider.server import ServerConfig, create_app

Start = Callable[[ServerConfig], str]


@pytest.fixture(scope="module")
def start(engine: Engine) -> Iterator[Start]:
    """Starts servers; gives each one's address. They stop when the module's tests are done."""
    running: list[tuple[uvicorn.Server, threading.Thread]] = []

    def serve(config: ServerConfig) -> str:
        app = create_app(engine, config)
        server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error"))
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        running.append((server, thread))
        port = server.servers[0].sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}"

    yield serve
    for server, thread in running:
        server.should_exit = True
        thread.join(10)


@pytest.fixture(scope="module")
def url(start: Start) -> str:
    """A server that lets everybody in."""
    return start(ServerConfig())
