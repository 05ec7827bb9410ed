"""A real HTTP server on this machine that misbehaves on request."""

import contextlib
import gc
import http.server
import threading
import warnings


class Server(http.server.ThreadingHTTPServer):
    """Serves `files`; what it does wrong is set by the test.

    Attributes:
        files: Path to bytes.
        cuts: For one request after the other: how many bytes of the body to send before hanging up.
        statuses: For one request after the other: the status to answer with.
        seen: The headers of every request.
    """

    def __init__(self, files):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.cuts, self.statuses, self.seen = files, [], [], []

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
        if server.statuses and (status := server.statuses.pop(0)) != 200:
            self.send_error(status)
            return
        if self.path not in server.files:
            self.send_error(404)
            return
        body = server.files[self.path]
        # taken before a header is sent: the client may leave then, and the test go on to the next request
        cut = server.cuts.pop(0) if server.cuts else len(body)
        self.send_response(200)
        self.send_header("Content-Type", "application/x-tar")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body[:cut])


@contextlib.contextmanager
def serving(files):
    """Run a server in a thread."""
    with Server(files) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ResourceWarning)
                gc.collect()  # requests leaves the sockets of failed downloads to the garbage collector
