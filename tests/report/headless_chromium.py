"""Drives a real headless Chromium over its debugging pipe, for tests of pages: no driver and no network needed."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
    # Any host name is unknown to it: a request that a page makes is seen, and leads nowhere.
    "--host-resolver-rules=MAP * ~NOTFOUND",
)  # fmt: skip


def executable() -> str | None:
    """The path of Chromium, None where there is none."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """One tab. `events` are all that the browser has told of it: requests, console messages, errors, loads."""

    def __init__(self, to: int, back: int) -> None:
        self._to, self._back, self._rest, self._last = to, back, b"", 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of one command."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._last:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def _next(self, seconds: float = 30.0) -> dict[str, Any]:
        end = time.monotonic() + seconds
        while b"\0" not in self._rest:
            if not select.select([self._back], [], [], max(0.0, end - time.monotonic()))[0]:
                raise TimeoutError(f"Chromium said nothing for {seconds} seconds")
            part = os.read(self._back, 1 << 16)
            if not part:
                raise EOFError("Chromium has ended")
            self._rest += part
        text, _, self._rest = self._rest.partition(b"\0")
        message = json.loads(text)
        if "method" in message:
            self.events.append(message)
        return message

    def open(self, page: Path, width: int = 1200, height: int = 900) -> None:
        """Load a file at a window's size, and wait until all of it is there."""
        self.events.clear()
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Page.navigate", url=page.resolve().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self._next()

    def value(self, expression: str) -> Any:
        """What a JavaScript expression is in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"])
        return answer["result"]["value"]

    def images(self) -> list[dict[str, Any]]:
        """Of every image: its alternative text, and the width it was decoded to (0: it was not)."""
        return self.value(
            "Promise.allSettled([...document.images].map(one => one.decode())).then(() => [...document.images]"
            ".map(one => ({alt: one.alt, width: one.naturalWidth})))"
        )

    def requests(self) -> list[str]:
        """The addresses that were asked for, but data URIs."""
        sent = [event for event in self.events if event["method"] == "Network.requestWillBeSent"]
        urls = [event["params"]["request"]["url"] for event in sent]
        return [url for url in urls if not url.startswith("data:")]

    def complaints(self) -> list[str]:
        """Console errors and warnings, uncaught exceptions, and what the browser itself logs."""
        found = []
        for event in self.events:
            said = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                found.append(said["exceptionDetails"]["text"])
            elif event["method"] == "Runtime.consoleAPICalled" and said["type"] in ("error", "warning", "assert"):
                found.append(str(said["args"]))
            elif event["method"] == "Log.entryAdded" and said["entry"]["level"] in ("error", "warning"):
                found.append(said["entry"]["text"])
        return found


@contextlib.contextmanager
def chromium(profile: Path) -> Iterator[Browser]:
    """A browser with a new profile in the folder `profile`; its processes end with the block."""
    path = executable()
    assert path is not None
    commands, ours = os.pipe()
    back, answers = os.pipe()

    def arrange() -> None:  # Chromium reads commands from descriptor 3 and answers on 4
        high = [os.dup2(commands, 100), os.dup2(answers, 101)]
        os.dup2(high[0], 3)
        os.dup2(high[1], 4)

    process = subprocess.Popen(
        [path, *FLAGS, "--remote-debugging-pipe", f"--user-data-dir={profile}"],
        preexec_fn=arrange, close_fds=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(commands)
    os.close(answers)
    try:
        browser = Browser(ours, back)
        yield browser
        browser.call("Browser.close")
    finally:
        os.close(ours)
        os.close(back)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
