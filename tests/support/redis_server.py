"""A real Redis server on this machine."""

import contextlib
import signal
import socket
import subprocess

from support.serving import wait_until


class Redis:
    """A server of its own, which can be stopped, killed and started again."""

    def __init__(self, folder):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.folder, self.process = folder, None
        self.url = f"redis://127.0.0.1:{self.port}/0"

    def start(self):
        words = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        words += ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]
        self.process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(self._listens)

    def _listens(self):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1) as line:
            line.sendall(b"PING\r\n")
            return line.recv(10).startswith(b"+PONG")
        return False

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(20)
