"""Running a service with uvicorn."""

from __future__ import annotations

import socket
from types import FrameType

import uvicorn

from neotta.deploy.serve import logs
from neotta.deploy.serve.application import application
from neotta.deploy.serve.connection import Config
from neotta.deploy.serve.guard import check_exposure, is_loopback
from neotta.deploy.serve.service import Service
from neotta.errors import OptionError


class Server(uvicorn.Server):
    """A uvicorn server that tells its service when it has to end, so that endless answers end too."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to end: accepted requests are answered first."""
        self._service.ending = True
        super().handle_exit(sig, frame)


def make_server(service: Service, host: str = "127.0.0.1", port: int = 8000, *, log_level: str = "info") -> Server:
    """A server that is ready to run.

    Args:
        service: What answers.
        host: Address to listen on; other machines reach it only with a key.
        port: Port; 0 for any that is free.
        log_level: "debug", "info", "warning" or "error".

    Raises:
        OptionError: The host is open to others and there is no key.
    """
    check_exposure(host, service.settings)
    config = Config(
        application(service, loopback=is_loopback(host)),
        service.settings.limits,
        host=host,
        port=port,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=max(1, round(service.settings.limits.timeout)),
        backlog=1024,
        lifespan="on",
    )
    logs.configure(log_level)
    return Server(config, service)


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens, or a clear reason why not.

    Raises:
        OptionError: The port is taken, or the address is not of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host.strip("[]"), port))
    except OSError as error:
        found.close()
        raise OptionError(
            f"cannot listen on {host}:{port}: {error.strerror or error} (choose another --port)"
        ) from None
    found.listen(1024)
    return found
