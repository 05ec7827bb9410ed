"""What a test registers is gone after it, so that no other test meets it."""

from neotta.adapters.registry import METHODS
from neotta.data import layouts
from neotta.data.corruptions import registry as corruptions
from neotta.deploy.onnx.export import EXPORTERS


def forget_afterwards(monkeypatch):
    """Let everything that is registered from now on be forgotten at the end of the test."""
    for registry in (METHODS, EXPORTERS, layouts.LAYOUTS, corruptions._added):
        list(registry)  # loads the built-in ones
        monkeypatch.setattr(registry, "_things", dict(registry._things))
    monkeypatch.setattr(layouts, "_recognisers", dict(layouts._recognisers))
