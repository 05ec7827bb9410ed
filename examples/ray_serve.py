"""Cameras on many machines: Ray Serve sends a camera to the replica that holds it, and a store keeps its state.

    pip install 'neotta[lab,redis]' 'ray[serve]'
    NEOTTA_STORE=redis://10.0.0.5:6379/0 serve run ray_serve:app
    curl --data-binary @digit.png -H 'serve_multiplexed_model_id: gate' http://127.0.0.1:8000/

The id of a camera is Ray's multiplexed model id. Ray sends a camera to the replica that has it, if that one is not
busy; versions in the store decide if two replicas get it at once. On one machine `NEOTTA_STORE` may be an SQLite file.
"""

from __future__ import annotations

import asyncio
import io
import os

from PIL import Image
from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse

import neotta
from neotta.deploy import RedisStore, SharedStreams, SQLiteStore


class Camera:
    """What Ray holds for a camera; its state leaves the memory of the replica together with it."""

    def __init__(self, shared: SharedStreams, name: str) -> None:
        self.shared, self.name = shared, name

    def __del__(self) -> None:
        self.shared.forget(self.name)


@serve.deployment(num_replicas=int(os.environ.get("NEOTTA_REPLICAS", "2")), ray_actor_options={"num_cpus": 0.5})
class Cameras:
    """A replica: the model, and the states of the cameras that it has."""

    def __init__(self, model: str, store: str) -> None:
        loaded = neotta.load_model(model)
        self.labels, self.preprocess = loaded.labels, loaded.preprocess
        adapted = neotta.adapt(loaded.model, streams=True)
        self.shared = SharedStreams(adapted, RedisStore(store) if "://" in store else SQLiteStore(store))

    @serve.multiplexed(max_num_models_per_replica=1000)
    async def camera(self, name: str) -> Camera:
        """Called by Ray for a camera that is new to this replica."""
        return Camera(self.shared, name)

    async def __call__(self, request: Request) -> JSONResponse:
        """Answer one image file."""
        name = serve.get_multiplexed_model_id()
        if not name:
            return JSONResponse({"error": "send the camera in the header serve_multiplexed_model_id"}, 400)
        await self.camera(name)
        image = self.preprocess(Image.open(io.BytesIO(await request.body())))
        logits = await asyncio.to_thread(self.shared, image[None], name)
        best = int(logits[0].argmax())
        return JSONResponse({"label": self.labels[best], "probability": float(logits[0].softmax(0)[best])})

    def check_health(self) -> None:
        """Called by Ray every ten seconds: a store that lost its data gets it back."""
        self.shared.flush()


app = Cameras.bind(os.environ.get("NEOTTA_MODEL", "digits"), os.environ.get("NEOTTA_STORE", "cameras.sqlite"))
