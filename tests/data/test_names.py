"""The public names of `neotta.data`."""

import ast
import importlib
import pkgutil
from pathlib import Path
from types import ModuleType

import neotta.data


def test_every_name_can_be_reached_and_is_typed():
    tree = ast.parse(Path(neotta.data.__file__).read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module != "__future__"]
    assert {alias.name for node in imports for alias in node.names} - {"TYPE_CHECKING", "lazy"} == {
        *neotta.data.__all__
    }
    assert set(neotta.data.__all__) <= set(dir(neotta.data))


def test_no_name_means_a_module_now_and_something_else_later():
    before = {name: getattr(neotta.data, name) for name in neotta.data.__all__}
    for module in pkgutil.iter_modules(neotta.data.__path__):
        importlib.import_module(f"neotta.data.{module.name}")
    assert {name: getattr(neotta.data, name) for name in neotta.data.__all__} == before
    assert [name for name, value in before.items() if isinstance(value, ModuleType)] == ["orders"]
