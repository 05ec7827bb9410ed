"""A real HTTP server on this machine that misbehaves on request."""

import contextlib
import http.server
import re
import threading


class Server(http.server.ThreadingHTTPServer):
    """Serves `files`; what it does wrong is set by the test.

    Attributes:
        files: Path to bytes.
        ranges: Whether Range is understood.
        etag: Validator sent with every file, or None.
        cuts: For one request after the other: how many bytes of the body to send before hanging up.
        statuses: For one request after the other: an error to answer with.
        hang: How many requests to leave without an answer.
        announce: Whether to send the length; `claim` is a false one.
        seen: The headers of every request.
    """

    def __init__(self, files):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.ranges, self.etag = files, True, '"v1"'
        self.content_type, self.announce, self.claim = "application/x-tar", True, None
        self.cuts, self.statuses, self.seen = [], [], []
        self.silent = threading.Event()
        self.hang = 0

    def url(self, path):
        return f"http://127.0.0.1:{self.server_port}{path}"

    def handle_error(self, request, client_address):
        """A client that hangs up is no news."""


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_GET(self):
        server = self.server
        server.seen.append(dict(self.headers))
        self.close_connection = True
        if server.hang:
            server.hang -= 1
            server.silent.wait(5)
            return
        if server.statuses and (status := server.statuses.pop(0)) != 200:
            self.send_error(status)
            return
        if self.path not in server.files:
            self.send_error(404)
            return
        self.answer(server.files[self.path])

    def answer(self, body):
        server, start = self.server, 0
        # taken before a header is sent: the client may leave then, and the test go on to the next request
        cut = server.cuts.pop(0) if server.cuts else len(body)
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        same = self.headers.get("If-Range") in (None, server.etag)
        if wanted and server.ranges and same:
            start = int(wanted[1])
            if start >= len(body):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(body)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        else:
            self.send_response(200)
        self.send_header("Content-Type", server.content_type)
        if server.announce:
            self.send_header("Content-Length", str(server.claim or len(body) - start))
        if server.etag:
            self.send_header("ETag", server.etag)
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body[start : start + cut])


@contextlib.contextmanager
def serving(files):
    """Run a server in a thread."""
    with Server(files) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.silent.set()
            server.shutdown()
            thread.join()
