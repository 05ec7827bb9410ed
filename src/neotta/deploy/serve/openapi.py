"""The description of the routes, `/openapi.json`, which the page `/docs` shows."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from neotta._version import __version__
from neotta.deploy.serve.service import Service

_STREAM = {
    "name": "stream",
    "in": "query",
    "schema": {"type": "string"},
    "description": "The camera; default: default.",
}
_ADAPT = {"name": "adapt", "in": "query", "schema": {"type": "boolean"}, "description": "false: predict only."}
_TOP = {"name": "top", "in": "query", "schema": {"type": "integer"}, "description": "How many labels; default: 3."}


def _said(summary: str, *, method: str = "get", **more: Any) -> dict[str, Any]:
    answers = {"200": {"description": "The answer."}, "default": {"$ref": "#/components/responses/Refused"}}
    return {method: {"summary": summary, "responses": answers, **more}}


def _body(kind: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"required": True, "content": {kind: {"schema": schema}}}


def _infer(name: str) -> dict[str, Any]:
    tensor = {
        "type": "object",
        "required": ["name", "shape", "datatype"],
        "properties": {
            "name": {"const": "images"},
            "shape": {"type": "array", "items": {"type": "integer"}},
            "datatype": {"enum": ["FP32", "UINT8", "BYTES"]},
            "parameters": {"type": "object", "properties": {"binary_data_size": {"type": "integer"}}},
            "data": {"type": "array", "items": {}},
        },
    }
    parameters = {
        "stream": {"type": "string", "description": "The camera; default: default."},
        "adapt": {"type": "boolean", "description": "false: predict only."},
        "binary_data_output": {"type": "boolean", "description": "Send all outputs as bytes after the JSON."},
    }
    request = {
        "type": "object",
        "required": ["inputs"],
        "properties": {
            "id": {"type": "string", "description": "Comes back in the answer."},
            "parameters": {"type": "object", "properties": parameters},
            "inputs": {"type": "array", "items": tensor},
            "outputs": {"type": "array", "items": {"type": "object", "required": ["name"]}},
        },
    }
    return _said(
        f"Classify a batch of images with {name} (Open Inference Protocol; JSON or binary tensors)",
        method="post",
        requestBody=_body("application/json", request),
    )


def description(service: Service) -> dict[str, Any]:
    """The routes as an OpenAPI document."""
    name = service.settings.name
    base = f"/v2/models/{name}"
    files_of_form = {"type": "object", "additionalProperties": {"type": "string", "format": "binary"}}
    image = _body("image/jpeg", {"type": "string", "format": "binary"})
    image["content"]["multipart/form-data"] = {"schema": files_of_form}
    refused = {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}
    paths = {
        "/classify": _said(
            "Classify image files", method="post", parameters=[_STREAM, _ADAPT, _TOP], requestBody=image
        ),
        "/v2": _said("The server and its extensions"),
        "/v2/health/live": _said("Whether the server runs"),
        "/v2/health/ready": _said("Whether requests are answered"),
        base: _said("The inputs and outputs of the model"),
        f"{base}/ready": _said("Whether the model answers"),
        f"{base}/infer": _infer(name),
        **{path: _said(text, parameters=[_ID]) for path, text in _LOOKING.items()},
        **{path: _said(text, method="post", requestBody=_ACT) for path, text in _ACTING.items()},
        "/api/server": _said("The server at a glance"),
        "/api/cameras": _said("All cameras at a glance"),
        "/api/events": _said("What changes, live (server-sent events)"),
        "/metrics": _said("Figures for Prometheus"),
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": f"neotta serve: {name}", "version": __version__},
        "paths": paths,
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "responses": {"Refused": {"description": "Why not.", "content": {"application/json": {"schema": refused}}}},
        },
        "security": [{"key": []}] if service.settings.key else [],
    }


_ID = {"name": "id", "in": "query", "required": True, "schema": {"type": "string"}, "description": "The camera."}
_ACT = _body("application/json", {"type": "object", "required": ["id"], "properties": {"id": {"type": "string"}}})
_LOOKING = {
    "/api/camera": "One camera with its history, alarms and snapshots",
    "/api/camera/state": "Its state as a safetensors file",
    "/api/camera/image": "One of its last images (number=0 is the newest), if they are kept",
}
_ACTING = {
    "/api/camera/freeze": "Stop adapting; the state stays",
    "/api/camera/unfreeze": "Adapt again",
    "/api/camera/reset": "Forget what was learnt",
    "/api/camera/rollback": 'Go back to the last snapshot up to a time: {"id": ..., "to": SECONDS since 1970}',
    "/api/camera/rename": 'Show it under another name: {"id": ..., "name": ...}',
    "/api/camera/forget": "Delete everything about it",
}


def routes(service: Service) -> list[Route]:
    """The document."""

    async def document(request: Request) -> Response:
        return JSONResponse(description(service))

    return [Route("/openapi.json", document)]
