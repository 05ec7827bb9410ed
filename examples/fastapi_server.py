"""A model with cameras in a FastAPI server of your own: async routes, routes in threads, and a pool of your own.

    pip install 'neotta[lab]' fastapi uvicorn
    uvicorn --app-dir examples fastapi_server:app
    curl --data-binary @digit.png http://127.0.0.1:8000/async/gate
    curl http://127.0.0.1:8000/health/gate

Threads share the model: each call learns from its own images under the lock of the streams.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import torch
from fastapi import Body, FastAPI
from PIL import Image

import neotta

STATE = Path(os.environ.get("NEOTTA_STATE", "cameras.safetensors"))
loaded = neotta.load_model(os.environ.get("NEOTTA_MODEL", "digits"))
model = neotta.adapt(loaded.model, streams=True)
pool = ThreadPoolExecutor(2)
ImageFile = Annotated[bytes, Body(media_type="application/octet-stream")]


@contextlib.asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Go on where the last process stopped; `neotta.deploy.SharedStreams` would survive a kill, too."""
    if STATE.exists():
        neotta.load(model, STATE)
    yield
    neotta.save(model, STATE)


app = FastAPI(lifespan=lifespan)


@torch.inference_mode()
def classify(content: bytes) -> dict[str, Any]:
    """Called inside `neotta.streams(camera)`, in whatever thread."""
    logits = model(loaded.preprocess(Image.open(io.BytesIO(content)))[None])
    best = int(logits[0].argmax())
    return {"label": loaded.labels[best], "probability": float(logits[0].softmax(0)[best])}


@app.post("/async/{camera}")
async def in_a_task(camera: str, content: ImageFile) -> dict[str, Any]:
    """`asyncio.to_thread` takes the block along."""
    with neotta.streams(camera):
        return await asyncio.to_thread(classify, content)


@app.post("/pool/{camera}")
async def in_a_pool(camera: str, content: ImageFile) -> dict[str, Any]:
    """`run_in_executor` does not: here the function itself enters the block."""
    return await asyncio.get_running_loop().run_in_executor(pool, neotta.streams(camera)(classify), content)


@app.post("/thread/{camera}")
def in_a_thread(camera: str, content: ImageFile) -> dict[str, Any]:
    """FastAPI runs a route without `async` in a thread."""
    with neotta.streams(camera):
        return classify(content)


@app.get("/health/{camera}")
def health(camera: str) -> dict[str, Any]:
    """What can be said about a camera."""
    found = neotta.health(model, stream=camera)
    return {"verdict": found.verdict, "samples": found.samples, "remarks": found.remarks}
