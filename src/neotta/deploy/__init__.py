"""Deployment of adapted classifiers: ONNX files, a runner without torch, and NEO on logits.

Importing this package imports neither torch nor any optional package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from neotta._extras import lazy

if TYPE_CHECKING:
    from neotta.deploy.logits import LogitRecenter
    from neotta.deploy.onnx.export import ExportJob, export, register_exporter
    from neotta.deploy.onnx.runtime import OnnxClassifier

__all__ = ["ExportJob", "LogitRecenter", "OnnxClassifier", "export", "register_exporter"]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "neotta.deploy.logits": "LogitRecenter",
        "neotta.deploy.onnx.export": "ExportJob export register_exporter",
        "neotta.deploy.onnx.runtime": "OnnxClassifier",
    },
)
