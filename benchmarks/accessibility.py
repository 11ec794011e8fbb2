"""The server's page under axe, in headless Chromium: light and dark, wide and narrow, after an answer was given.

The page's own headers forbid scripts that it did not bring, so it is looked at through a proxy that adds axe to it.

npm install --prefix /tmp/axe axe-core, then
python benchmarks/accessibility.py --axe /tmp/axe/node_modules/axe-core/axe.min.js
"""

from __future__ import annotations

import argparse
import json
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from outrider.api import Engine
from outrider.evaluate.machine import provenance
from outrider.server import ServerConfig, create_app

RUN = """
addEventListener("load", async () => {
  document.querySelector("#most").value = 24;
  document.querySelector("#form").requestSubmit();
  await new Promise((done) => setTimeout(done, 6000));
  const found = await axe.run(document, { resultTypes: ["violations"] });
  const violations = found.violations.map(({ id, impact, help, nodes }) =>
    ({ id, impact, help, nodes: nodes.map((node) => node.html) }));
  const scheme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  const view = { scheme, width: innerWidth, passes: found.passes.length, violations };
  await fetch("/axe-found", { method: "POST", body: JSON.stringify(view) });
});
"""
VIEWS = (("light", (1280, 900)), ("dark", (1280, 900)), ("light", (390, 844)), ("dark", (390, 844)))


@contextmanager
def proxied(server: str, axe: str, found: queue.Queue[dict[str, Any]]) -> Iterator[str]:
    """The page with axe in it, everything else as the server gives it."""

    class Proxy(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            own = {"/axe.js": axe, "/run.js": RUN}
            if self.path in own:
                self.answer(own[self.path].encode(), "text/javascript")
            elif self.path == "/":
                page = httpx.get(server).text
                page = page.replace("</body>", '<script src="/axe.js"></script><script src="/run.js"></script></body>')
                self.answer(page.encode(), "text/html; charset=utf-8")
            else:
                self.hand_on("GET", None)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path == "/axe-found":
                found.put(json.loads(body))
                self.answer(b"{}", "application/json")
            else:
                self.hand_on("POST", body)

        def answer(self, body: bytes, kind: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def hand_on(self, method: str, body: bytes | None) -> None:
            headers = {"Content-Type": "application/json"} if body else {}
            with httpx.stream(method, server + self.path, content=body, headers=headers, timeout=None) as answer:
                self.send_response(answer.status_code)
                self.send_header("Content-Type", answer.headers.get("content-type", "text/plain"))
                self.end_headers()
                try:
                    for piece in answer.iter_raw():
                        self.wfile.write(piece)
                        self.wfile.flush()
                except BrokenPipeError:
                    pass

    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    proxy.daemon_threads = True
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{proxy.server_port}/"
    finally:
        proxy.shutdown()


def look(url: str, scheme: str, size: tuple[int, int], found: queue.Queue[dict[str, Any]]) -> dict[str, Any]:
    """What axe finds in one view."""
    with tempfile.TemporaryDirectory() as profile:
        command = [
            "chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}",
            f"--window-size={size[0]},{size[1]}", "--remote-debugging-port=0",
            *(["--force-dark-mode"] if scheme == "dark" else []), url,
        ]  # fmt: skip
        browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            return found.get(timeout=60)
        finally:
            browser.terminate()
            browser.wait(10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--axe", type=Path, required=True, help="axe.min.js of axe-core")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    found: queue.Queue[dict[str, Any]] = queue.Queue()
    with Engine("smollm2-135m") as engine:
        config = uvicorn.Config(create_app(engine, ServerConfig()), host="127.0.0.1", port=0, log_level="error")
        server = uvicorn.Server(config)
        threading.Thread(target=server.run, daemon=True).start()
        while not server.started:
            threading.Event().wait(0.05)
        url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        with proxied(url, args.axe.read_text(encoding="utf-8"), found) as page:
            views = [look(page, scheme, size, found) for scheme, size in VIEWS]
        server.should_exit = True
    version = args.axe.read_text(encoding="utf-8")[:40].split("axe v")[-1].split()[0]
    result = {"what": "axe on the page", **provenance(), "axe": version, "views": views}
    print(json.dumps(result, indent=2))
    if args.json is not None:
        args.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    serious = [v for view in views for v in view["violations"] if v["impact"] in ("serious", "critical")]
    sys.exit(1 if serious else 0)


if __name__ == "__main__":
    main()
