"""Skips tests that need an optional package where it is not installed, as in the environment with the core alone.

A test that imports such a package itself, or uses a part of neotta that says which extra it needs, is skipped. An
import by neotta's own code that says nothing is a failure.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import neotta
from neotta._extras import EXTRAS
from neotta.errors import MissingExtraError

MISSING = {package for package in EXTRAS if importlib.util.find_spec(package) is None}
NEOTTA = Path(neotta.__file__).resolve().parent


def _skipping():
    try:
        return (yield)
    except MissingExtraError as error:
        if not isinstance(error.__cause__, ModuleNotFoundError) or _package(error.__cause__) not in MISSING:
            raise
        pytest.skip(str(error))
    except ModuleNotFoundError as error:
        if _package(error) not in MISSING or _raised_by_neotta(error):
            raise
        pytest.skip(f"needs the package {_package(error)!r} (pip install 'neotta[{EXTRAS[_package(error)]}]')")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item):
    return (yield from _skipping())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    return (yield from _skipping())


def _package(error: ModuleNotFoundError) -> str:
    return (error.name or "").partition(".")[0]


def _raised_by_neotta(error: ModuleNotFoundError) -> bool:
    """Whether neotta's own code imported the package, and not a test or the models of recorded runs."""
    last = error.__traceback__
    while last.tb_next is not None and "importlib" not in last.tb_next.tb_frame.f_code.co_filename:
        last = last.tb_next
    return NEOTTA in Path(last.tb_frame.f_code.co_filename).resolve().parents
