"""HTTP connections whose answer must come in time."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import urllib.request

_LONGEST = 60.0  # seconds, for connections that are opened without a timeout


class InTime(http.client.HTTPConnection):
    """A connection whose answer must begin, and its headers end, within the timeout.

    The timeout of a socket is for each byte: a server that drips its headers would be waited for without end.
    """

    def getresponse(self) -> http.client.HTTPResponse:
        """Wait for the headers of the answer."""
        late, seconds = threading.Event(), self.timeout or _LONGEST

        def give_up() -> None:
            late.set()
            with contextlib.suppress(OSError):
                if self.sock is not None:
                    self.sock.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(seconds, give_up)
        timer.daemon = True
        timer.start()
        slow = TimeoutError(f"no answer within {seconds:g} seconds")
        try:
            response = super().getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise slow if late.is_set() else error from None
        finally:
            timer.cancel()
        if late.is_set():  # what was read until then may look like the end of the headers
            response.close()
            raise slow
        return response


class SecureInTime(InTime, http.client.HTTPSConnection):
    """The same over TLS."""


class _Handler(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    """Opens connections that answer in time."""

    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        """Open an address of http."""
        return self.do_open(InTime, request)

    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        """Open an address of https."""
        return self.do_open(SecureInTime, request)


def opener() -> urllib.request.OpenerDirector:
    """Opens http and https alone, so that no redirection leads to a local file."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        _Handler,
        urllib.request.HTTPRedirectHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPErrorProcessor,
        urllib.request.UnknownHandler,
    ):
        opener.add_handler(handler())
    return opener
