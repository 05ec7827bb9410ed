"""The application: all routes of a service, guarded."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware

from neotta.deploy.serve import cameras, classify, events, infer, metrics, openapi, pages
from neotta.deploy.serve.guard import Guard
from neotta.deploy.serve.measuring import Measuring
from neotta.deploy.serve.refusal import on_error
from neotta.deploy.serve.service import Service
from neotta.errors import NeottaError


def application(service: Service, *, loopback: bool = True) -> Starlette:
    """The ASGI application of a service.

    Args:
        service: What answers; it starts and ends with the application.
        loopback: Whether the application is reached from this machine alone.
    """

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await service.start()
        try:
            yield
        finally:
            await service.close()

    measured = metrics.Metrics(service)
    return Starlette(
        routes=[
            *infer.routes(service),
            *classify.routes(service),
            *cameras.routes(service),
            *events.routes(service),
            *metrics.routes(measured),
            *openapi.routes(service),
            *pages.routes(),
        ],
        middleware=[
            Middleware(Measuring, metrics=measured),
            Middleware(Guard, settings=service.settings, loopback=loopback),
        ],
        exception_handlers={HTTPException: on_error, NeottaError: on_error, Exception: on_error},
        lifespan=lifespan,
    )
