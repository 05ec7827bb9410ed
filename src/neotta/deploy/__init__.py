"""Deployment of adapted classifiers: ONNX files, a runner without torch, NEO on logits, and streams that are shared.

Importing this package imports neither torch nor any optional package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from neotta._extras import lazy

if TYPE_CHECKING:
    from neotta.deploy.logits import LogitRecenter
    from neotta.deploy.onnx.export import ExportJob, export, register_exporter
    from neotta.deploy.onnx.runtime import OnnxClassifier
    from neotta.deploy.shared import RedisStore, SharedStreams, SQLiteStore

__all__ = [
    "ExportJob",
    "LogitRecenter",
    "OnnxClassifier",
    "RedisStore",
    "SQLiteStore",
    "SharedStreams",
    "export",
    "register_exporter",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "neotta.deploy.logits": "LogitRecenter",
        "neotta.deploy.onnx.export": "ExportJob export register_exporter",
        "neotta.deploy.onnx.runtime": "OnnxClassifier",
        "neotta.deploy.shared": "RedisStore SQLiteStore SharedStreams",
    },
)
