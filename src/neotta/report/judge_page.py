"""The page on which a person judges images: its requests and their answers, for any server, and one on loopback."""

from __future__ import annotations

import hmac
import json
import secrets
import threading
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from neotta.errors import NeottaError
from neotta.evaluate.judgement import NONE, SKIP, Judgement, picture_of
from neotta.report.html import render

LONGEST = 10_000  # bytes of a request
ENDED = "The command in the terminal has ended: start it again."


class Reply(NamedTuple):
    status: int
    kind: str
    body: bytes
    headers: dict[str, str]


class JudgePage:
    """Answers the requests of a page: GET the page (an empty path), `state` and `image/3`; POST `answer` and `undo`.

    Several pages may be open: an answer or an undo that another page was faster with changes nothing.
    """

    def __init__(self, judgement: Judgement, changed: Callable[[], None] = lambda: None) -> None:
        self.judgement, self._changed = judgement, changed

    def reply(self, method: str, path: str, body: bytes = b"") -> Reply:
        if (method, path) == ("GET", ""):
            return page(self.judgement.notes)
        part, _, number = path.partition("/")
        judgement = self.judgement
        if method == "GET" and part == "image" and number.isdecimal() and int(number) < len(judgement.order):
            kind, content = picture_of(judgement.image(judgement.order[int(number)]))
            return Reply(200, kind, content, {"Cache-Control": "private, max-age=86400"})
        if (method, path) == ("GET", "state"):
            return _json(self.state())
        if method == "POST" and path in ("answer", "undo"):
            try:
                said = json.loads(body)
                with judgement.lock:
                    if said["image"] == len(judgement.given) - (path == "undo"):
                        judgement.undo() if path == "undo" else self._answer(said["choice"])
                        self._changed()
                    return _json(self.state())
            except (ValueError, KeyError, TypeError, IndexError) as error:
                return _json({"error": f"this is no answer: {error}"}, 400)
            except (NeottaError, OSError) as error:
                return _json({"error": str(error)}, 500)
        return _json({"error": "there is no such page"}, 404)

    def _answer(self, choice: Any) -> None:
        name = self.judgement.next
        if name is not None:
            right = {"none": NONE, "skip": SKIP}.get(str(choice)) or self.judgement.candidates(name)[int(choice)]
            self.judgement.answer(name, right)

    def state(self) -> dict[str, Any]:
        """What the page shows: nothing in it says whose a candidate is."""
        judgement, name = self.judgement, self.judgement.next
        gains = [{**gain._asdict(), "verdict": gain.verdict, "text": gain.text} for gain in judgement.gains]
        return {
            "image": len(judgement.given),
            "images": len(judgement.order),
            "candidates": [] if name is None else judgement.candidates(name),
            "gains": gains,
            "finished": judgement.finished,
            "line": judgement.line,
            "sentences": judgement.sentences(),
        }


def page(notes: Sequence[str], api: str = "") -> Reply:
    """The page itself; `api` is where its requests go if not below it: the last part of its address follows."""
    nonce = secrets.token_urlsafe(16)
    policy = (
        "default-src 'none'; img-src blob: data:; connect-src 'self'; style-src 'unsafe-inline'; "
        f"script-src 'nonce-{nonce}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    content = render("judge.html", nonce=nonce, ended=ENDED, notes=notes, api=api)
    return Reply(200, "text/html; charset=utf-8", content.encode(), {"Content-Security-Policy": policy})


def _json(content: Any, status: int = 200) -> Reply:
    return Reply(status, "application/json", json.dumps(content).encode(), {})


class JudgeServer(ThreadingHTTPServer):
    """Shows a page on this machine alone, to who knows the key in its address; to be used as a context.

    Attributes:
        address: What to open in a browser.
    """

    daemon_threads = True

    def __init__(self, page: JudgePage, port: int = 0) -> None:
        self.page, self._key, self._ended = page, secrets.token_urlsafe(16), False
        super().__init__(("127.0.0.1", port), _Handler)
        self.address = f"http://127.0.0.1:{self.server_port}/{self._key}/"
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    def reply(self, method: str, path: str, body: bytes) -> Reply:
        if self._ended:  # on a connection that a browser keeps open
            return _json({"error": ENDED}, 410)
        key, _, rest = path[1:].partition("/")
        if not hmac.compare_digest(key.encode(), self._key.encode()):
            return _json({"error": "the address lacks its key: take all of it from the terminal"}, 403)
        return self.page.reply(method, rest, body)

    def __enter__(self) -> JudgeServer:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended = True
        self.shutdown()
        self._thread.join()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:  # a browser went away
        pass


class _Handler(BaseHTTPRequestHandler):
    server: JudgeServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # headers and content in one packet
    timeout = 60

    def do_GET(self) -> None:
        self._send(self.server.reply("GET", self.path, b""))

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > LONGEST:
            self.close_connection = True
            self._send(_json({"error": "the request is too long"}, 413))
            return
        self._send(self.server.reply("POST", self.path, self.rfile.read(int(length))))

    def _send(self, reply: Reply) -> None:
        self.send_response(reply.status)
        headers = {"Content-Type": reply.kind, "Content-Length": str(len(reply.body)), "Cache-Control": "no-store"}
        safe = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
        for name, value in {**headers, **safe, **reply.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(reply.body)

    def log_message(self, *args: Any) -> None:
        pass
