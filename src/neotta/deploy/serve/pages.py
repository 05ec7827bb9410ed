"""The pages and what they load: fixed files of the package, by a fixed list of names."""

from __future__ import annotations

from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from neotta.deploy.serve.refusal import Refusal

KINDS = {"html": "text/html", "js": "text/javascript", "css": "text/css"}
PAGES = {"/": "index.html", "/docs": "docs.html"}
STATIC = ("api.js", "app.js", "docs.js", "plots.js", "style.css")
POLICY = "default-src 'self'; img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


def routes() -> list[Route]:
    """The pages."""

    async def static(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in STATIC:
            raise Refusal(404, "there is no such file")
        return _file(name)

    async def page(request: Request) -> Response:
        return _file(PAGES[request.url.path])

    return [*(Route(path, page) for path in PAGES), Route("/static/{name}", static)]


def _file(name: str) -> Response:
    content = files("neotta.deploy.serve").joinpath("static", name).read_bytes()
    headers = {
        "Content-Security-Policy": POLICY,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }
    return Response(content, media_type=KINDS[name.rpartition(".")[2]], headers=headers)
