"""`neotta serve --check`: does everything open, and does the model answer?"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from neotta.deploy.serve.classifier import Job
from neotta.deploy.serve.service import Service


def checked(service: Service) -> Iterator[str]:
    """Answer one blank image without learning from it, and describe what would be served.

    Raises:
        NeottaError: Something does not work.
    """
    engine, settings = service.engine, service.settings
    blank = np.zeros((1, 3, *engine.preprocess.size), np.float32)
    started = time.perf_counter()
    service.classifier.run([Job(blank, "check", adapt=False)])
    taken = time.perf_counter() - started
    size = " x ".join(map(str, engine.preprocess.size))
    yield f"model     {settings.name}: {engine.classes} classes, {size} pixels, {taken * 1e3:.0f} ms an image"
    yield f"rule      {engine.rule}{' (in the shadow of the plain model)' if settings.shadow else ''}"
    kept = "on disk" if engine.stored else "in memory: lost when the server ends"
    yield f"state     {kept}; {len(service.known)} cameras known"
    yield "durable   " + ("every batch" if not settings.durable else f"every {settings.durable:g} s")
    yield "key       " + ("needed" if settings.key else "none: for this machine alone")
    yield "ok"
