"""Deployment of adapted classifiers: ONNX files, a runner without torch, and NEO on logits.

Importing this package imports neither torch nor any optional package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from neotta._lazy import lazy

if TYPE_CHECKING:
    from neotta.deploy.exporters import ExportJob, export, register_exporter
    from neotta.deploy.logits import LogitRecenter
    from neotta.deploy.onnx_runtime import OnnxClassifier
    from neotta.deploy.serve.ray_app import serve_app

__all__ = ["ExportJob", "LogitRecenter", "OnnxClassifier", "export", "register_exporter", "serve_app"]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "LogitRecenter": "neotta.deploy.logits",
        "OnnxClassifier": "neotta.deploy.onnx_runtime",
        "ExportJob": "neotta.deploy.exporters",
        "export": "neotta.deploy.exporters",
        "register_exporter": "neotta.deploy.exporters",
        "serve_app": "neotta.deploy.serve.ray_app",
    },
)
