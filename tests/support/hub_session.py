"""A process that loads models from a hub of its own on this machine; run by test_hub.py.

It serves the folder that it is given as a hub over HTTP, and prints as JSON what loading from it gave:
with the hub there, with the hub gone, and with a hub that takes the call but never answers.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sys
import threading
import time
import warnings
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "c0ffee" + "0" * 34
FOLDER = Path(sys.argv[1])
asked: list[str] = []


class Hub(BaseHTTPRequestHandler):
    """As much of the hub's protocol as a download needs: /<owner>/<name>/resolve/<revision>/<file>."""

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, *, body: bool) -> None:
        repo, _, rest = self.path.strip("/").partition("/resolve/")
        revision, _, name = rest.partition("/")
        file = FOLDER / repo / name
        asked.append(f"{self.command} {repo} {name}")
        if not file.is_file() or revision not in ("main", COMMIT):
            wrong = "Revision" if revision not in ("main", COMMIT) else "Entry"
            self.send_response(404)
            self.send_header("X-Error-Code", f"{wrong if (FOLDER / repo).is_dir() else 'Repo'}NotFound")
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        content = file.read_bytes()
        self.send_response(200)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, *args):
        pass


def attempt(name: str, **options) -> dict:
    from neotta.errors import NeottaError
    from neotta.models.load import load_model

    asked.clear()
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            loaded = load_model(name, **options)
        except NeottaError as error:
            result = {"error": f"{type(error).__name__}: {error}"}
        else:
            total = sum(parameter.double().sum().item() for parameter in loaded.model.parameters())
            result = {"sum": total, "labels": loaded.labels, "size": loaded.preprocess.size}
    return {
        **result,
        "asked": sorted(set(asked)),
        "warnings": [f"{Path(warning.filename).name}: {warning.message}" for warning in caught],
        "seconds": time.perf_counter() - start,
    }


def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    port = server.server_address[1]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.environ.update(
        HF_ENDPOINT=f"http://127.0.0.1:{port}",
        HF_HUB_OFFLINE="0",
        HF_HUB_ETAG_TIMEOUT="1",
        HF_HUB_DISABLE_PROGRESS_BARS="1",
        HF_HUB_DISABLE_TELEMETRY="1",
    )
    results = {
        "timm": attempt("timm:test_vit"),
        "timm_other_head": attempt("timm:test_vit", num_classes=7),
        "hf": attempt("hf:someone/tiny"),
        "hf_sharded": attempt("hf:someone/sharded"),
        "hf_revision": attempt("hf:someone/tiny", revision="v9"),
        "hf_pickled": attempt("hf:someone/pickled"),
        "hf_unknown": attempt("hf:someone/else"),
        "timm_pickled": attempt("timm:test_vit2"),
    }
    server.shutdown()
    server.server_close()
    results |= {
        "timm_gone": attempt("timm:test_vit"),
        "hf_gone": attempt("hf:someone/tiny"),
        "hf_sharded_gone": attempt("hf:someone/sharded"),
        "hf_unknown_gone": attempt("hf:someone/else"),
        "timm_unknown_gone": attempt("timm:test_resnet"),
    }
    with socket.create_server(("127.0.0.1", port)):
        results["timm_silent"] = attempt("timm:test_resnet")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
