"""The routes of the Open Inference Protocol v2."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from neotta._version import __version__
from neotta.deploy.serve.classifier import Answer, Job
from neotta.deploy.serve.guard import read_body
from neotta.deploy.serve.inputs import from_tensor
from neotta.deploy.serve.refusal import Refusal
from neotta.deploy.serve.service import Service
from neotta.deploy.serve.settings import camera_name
from neotta.deploy.serve.tensors import HEADER, Message, encode, parameters_of, parse, wanted
from neotta.neo.statefile import Array
from neotta.neo.stream_moments import softmax

INPUT = "images"


def routes(service: Service) -> list[Route]:
    """The routes of one model."""
    return Infer(service).routes()


class Infer:
    """Answers the requests of the protocol."""

    def __init__(self, service: Service) -> None:
        self.service = service

    def routes(self) -> list[Route]:
        """The addresses of the protocol."""
        found = [
            Route("/v2", self.server),
            Route("/v2/health/live", self.live),
            Route("/v2/health/ready", self.ready),
        ]
        for base in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
            found += [
                Route(base, self.metadata),
                Route(f"{base}/ready", self.model_ready),
                Route(f"{base}/infer", self.infer, methods=["POST"]),
            ]
        return found

    async def server(self, request: Request) -> Response:
        """The server's name, version and extensions."""
        return JSONResponse({"name": "neotta", "version": __version__, "extensions": ["binary_tensor_data"]})

    async def live(self, request: Request) -> Response:
        """Whether the server runs."""
        return JSONResponse({"live": True})

    async def ready(self, request: Request) -> Response:
        """Whether requests are answered."""
        ready = self.service.ready
        return JSONResponse({"ready": ready}, 200 if ready else 503)

    async def metadata(self, request: Request) -> Response:
        """The model's inputs and outputs."""
        self._check(request)
        return JSONResponse(self.service.metadata())

    async def model_ready(self, request: Request) -> Response:
        """Whether requests to the model are answered."""
        self._check(request)
        ready = self.service.ready
        return JSONResponse({"name": self.service.settings.name, "ready": ready}, 200 if ready else 503)

    async def infer(self, request: Request) -> Response:
        """Answer images."""
        self._check(request)
        body = await read_body(request, self.service.settings.limits)
        message = parse(body, request.headers.get(HEADER))
        binary = wanted(message.head, [output["name"] for output in self.service.metadata()["outputs"]])
        job = await self._made_ready(message)
        answer = await self.service.answer(job)
        outputs = answered(answer, binary, self.service)
        content, length = encode(self._head(message, job, answer), outputs, binary)
        if not length:
            return Response(content, media_type="application/json")
        return Response(content, media_type="application/octet-stream", headers={HEADER: str(length)})

    def _check(self, request: Request) -> None:
        name, version = request.path_params["model"], request.path_params.get("version", "1")
        mine = self.service.settings.name
        if name != mine:
            raise Refusal(404, f"there is no model {name[:100]!r}: this server has {mine!r}")
        if version != "1":
            raise Refusal(404, f"the model {mine!r} has no version {version[:20]!r}: it has '1'")

    async def _made_ready(self, message: Message) -> Job:
        """The images of a request; those that have to be decoded or resized not in the event loop."""
        if all(values.dtype.kind == "f" for values in message.inputs.values()):
            return self._job(message)
        return await asyncio.get_running_loop().run_in_executor(None, self._job, message)

    def _job(self, message: Message) -> Job:
        """The images of a request."""
        if set(message.inputs) != {INPUT}:
            raise Refusal(400, f"the model takes one input, {INPUT!r}, not {', '.join(message.inputs)[:200]}")
        parameters = parameters_of(message.head)
        try:
            camera = camera_name(parameters.get("stream"))
        except ValueError as error:
            raise Refusal(400, str(error)) from None
        adapt = parameters.get("adapt", True)
        if not isinstance(adapt, bool):
            raise Refusal(400, "the parameter adapt must be true or false")
        engine, limits = self.service.engine, self.service.settings.limits
        return from_tensor(message.inputs[INPUT], engine.preprocess, limits, camera, adapt)

    def _head(self, message: Message, job: Job, answer: Answer) -> dict[str, Any]:
        head: dict[str, Any] = {"model_name": self.service.settings.name, "model_version": "1"}
        given = message.head.get("id")
        if isinstance(given, str) and given:
            head["id"] = given
        head["parameters"] = {"stream": job.camera, "adapted": answer.learnt}
        if self.service.settings.shadow:
            head["parameters"]["shadow"] = True
        return head


def answered(answer: Answer, names: dict[str, bool], service: Service) -> dict[str, Array]:
    """The outputs that are asked for."""
    shown = answer.plain if service.settings.shadow else answer.adapted
    best = shown.argmax(1)
    found: dict[str, Array] = {}
    for name in names:
        if name == "logits":
            found[name] = np.asarray(shown, np.float32)
        elif name == "probabilities":
            found[name] = np.asarray(softmax(shown), np.float32)
        elif name == "label":
            found[name] = np.array([service.engine.labels[index] for index in best], object)
        else:
            chosen = {"class": best, "plain_class": answer.plain.argmax(1), "adapted_class": answer.adapted.argmax(1)}
            found[name] = chosen[name].astype(np.int64)
    return found
