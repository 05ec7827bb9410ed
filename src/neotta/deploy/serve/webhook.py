"""Alarms to another server: signed, retried, and never in the way."""

from __future__ import annotations

import hashlib
import hmac
import json
import queue
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from neotta.deploy.serve.logs import log
from neotta.errors import OptionError

SIGNATURE = "X-Neotta-Signature"
WAITING = 1000
"""Most alarms that wait to be sent; beyond that the oldest is dropped."""


class Webhook:
    """Sends alarms as JSON to an address, one after the other, in a thread of its own.

    Each is signed: `X-Neotta-Signature: t=SECONDS,sha256=HEX`, the HMAC of `SECONDS.BODY` under the key. An alarm that
    is not taken (no answer, or a status of 500 or 429) is tried again, after 1, 2, 4, ... seconds.

    Args:
        address: http or https.
        key: Signs what is sent; None leaves it unsigned.
        tries: How often an alarm is tried.
        pause: Seconds before the second try.

    Raises:
        OptionError: The address is not one of http or https.
    """

    def __init__(self, address: str, key: str | None = None, *, tries: int = 6, pause: float = 1.0) -> None:
        if urlsplit(address).scheme not in ("http", "https") or not urlsplit(address).hostname:
            raise OptionError(f"the webhook {address!r} is not an address of http or https")
        self._address, self._key, self._tries, self._pause = address, key, tries, pause
        self._alarms: queue.Queue[Mapping[str, Any] | None] = queue.Queue(WAITING)
        self._ending = threading.Event()
        self.sent = self.lost = 0
        self._thread = threading.Thread(target=self._run, name="neotta-webhook", daemon=True)
        self._thread.start()

    def __call__(self, alarm: Mapping[str, Any]) -> None:
        """Send an alarm, later."""
        while True:
            try:
                self._alarms.put_nowait(alarm)
                return
            except queue.Full:
                self.lost += 1
                try:
                    self._alarms.get_nowait()
                except queue.Empty:
                    continue

    def close(self, seconds: float = 5.0) -> None:
        """Send what waits, but not for longer than some seconds."""
        self._ending.set()
        self(  # wakes the thread, which ends when nothing waits
            {"camera": None}
        )
        self._thread.join(seconds)

    def _run(self) -> None:
        while True:
            alarm = self._alarms.get()
            if alarm is not None and alarm.get("camera") is not None:
                self._deliver(alarm)
            if self._ending.is_set() and self._alarms.empty():
                return

    def _deliver(self, alarm: Mapping[str, Any]) -> None:
        body = json.dumps(dict(alarm)).encode()
        for attempt in range(self._tries):
            if attempt and self._ending.wait(self._pause * 2 ** (attempt - 1)):
                break
            try:
                self._send(body)
                self.sent += 1
                return
            except (OSError, ValueError) as error:
                if isinstance(error, urllib.error.HTTPError) and error.code < 500 and error.code != 429:
                    log("warning", webhook=f"refused with status {error.code}", camera=alarm["camera"])
                    break
        self.lost += 1
        log("warning", webhook="an alarm could not be delivered", camera=alarm["camera"])

    def _send(self, body: bytes) -> None:
        headers = {"Content-Type": "application/json", "User-Agent": "neotta"}
        if self._key is not None:
            stamp = str(int(time.time()))
            headers[SIGNATURE] = f"t={stamp},sha256={signature(self._key, stamp, body)}"
        request = urllib.request.Request(self._address, body, headers, method="POST")
        with urllib.request.urlopen(request, timeout=10) as answer:
            answer.read(1)


def signature(key: str, stamp: str, body: bytes) -> str:
    """The signature of a body that was sent at a time."""
    return hmac.new(key.encode(), f"{stamp}.".encode() + body, hashlib.sha256).hexdigest()
