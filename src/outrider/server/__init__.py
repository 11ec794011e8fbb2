"""The HTTP server: OpenAI's API, metrics, and a page, over one engine."""

from outrider.server.app import create_app
from outrider.server.config import ServerConfig

__all__ = ["ServerConfig", "create_app"]
