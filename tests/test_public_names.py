from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import neotta
from neotta import errors

SOURCE = Path(neotta.__file__)


def test_every_public_name_can_be_reached_and_is_typed():
    tree = ast.parse(SOURCE.read_text())
    typed = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module != "__future__"
        for alias in node.names
    } - {"TYPE_CHECKING", "lazy"}
    assert typed == set(neotta.__all__)
    for name in neotta.__all__:
        assert getattr(neotta, name) is not None
        assert name in dir(neotta)


def test_unknown_names_are_attribute_errors():
    assert not hasattr(neotta, "nonsense")


def test_importing_neotta_imports_nothing_heavy():
    code = "import sys, neotta; print(sorted({'torch', 'timm', 'numpy', 'transformers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_tree_of_errors_in_the_docstring_is_the_real_one():
    def lines(kind, depth=0):
        yield depth, kind.__name__
        for child in kind.__subclasses__():
            if child.__module__ == errors.__name__:
                yield from lines(child, depth + 1)

    drawn = [
        line for line in errors.__doc__.splitlines() if "Error" in line and ("──" in line or line == "NeottaError")
    ]
    names = [(line.index(line.strip("│├└─ ")) // 4, line.strip("│├└─ ").split()[0]) for line in drawn]
    assert names == list(lines(errors.NeottaError))


def test_errors_can_be_caught_as_built_in_ones():
    assert issubclass(errors.OptionError, ValueError)
    assert issubclass(errors.UnknownMethodError, KeyError)
    assert issubclass(errors.MissingExtraError, ImportError)
    assert str(errors.UnknownMethodError("tnet", ["tent"])) == "unknown method 'tnet': did you mean 'tent'?"
    assert "neotta[hf]" in str(errors.MissingExtraError("transformers", "hf", "loading hf: models"))
