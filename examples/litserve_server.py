r"""A model with cameras in LitServe, which joins the requests of all cameras into batches.

    pip install 'neotta[lab]' litserve
    python examples/litserve_server.py
    curl -H 'Content-Type: application/json' http://127.0.0.1:8000/predict \
        -d "{\"camera\": \"gate\", \"image\": \"$(base64 -w0 digit.png)\"}"

A worker is a process with a model of its own. For several workers use one `SQLiteStore` for all of them.
"""

from __future__ import annotations

import argparse
import base64
import io
from typing import Any

import litserve
import torch
from PIL import Image
from torch import Tensor

import neotta
from neotta.deploy import SharedStreams, SQLiteStore


class Cameras(litserve.LitAPI):  # type: ignore[misc]
    """The hooks that LitServe calls."""

    def __init__(self, store: str, **batches: Any) -> None:
        super().__init__(**batches)
        self.store = store

    def setup(self, device: str) -> None:
        """Load the model, in each worker."""
        self.loaded = neotta.load_model("digits")
        model = neotta.adapt(self.loaded.model.to(device), streams=True)
        self.shared = SharedStreams(model, SQLiteStore(self.store))

    def decode_request(self, request: dict[str, str]) -> tuple[str, Tensor]:
        """A camera and an image."""
        image = Image.open(io.BytesIO(base64.b64decode(request["image"])))
        return request["camera"], self.loaded.preprocess(image)

    def batch(self, inputs: list[tuple[str, Tensor]]) -> tuple[list[str], Tensor]:
        """The images of several cameras."""
        return [camera for camera, _ in inputs], torch.stack([image for _, image in inputs])

    def predict(self, inputs: tuple[list[str], Tensor]) -> Tensor:
        """Each row is adapted to its own camera."""
        cameras, images = inputs
        return self.shared(images, cameras).softmax(1)

    def encode_response(self, probabilities: Tensor) -> dict[str, Any]:
        """What one request gets."""
        best = int(probabilities.argmax())
        return {"label": self.loaded.labels[best], "probability": float(probabilities[best])}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--store", default="cameras.sqlite")
    asked = parser.parse_args()
    api = Cameras(asked.store, max_batch_size=16, batch_timeout=0.01)
    server = litserve.LitServer(api, accelerator="auto", workers_per_device=asked.workers)
    server.run(host="127.0.0.1", port=asked.port, generate_client_file=False)
