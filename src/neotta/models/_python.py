"""Models of the user's own, made by a function: `py:<module or path/to/file.py>:<function>`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from neotta._python_objects import beside, blamed_on, load_object
from neotta.errors import CodeError, ModelLoadError, OptionError, UnknownModelError, UnknownNameError

FORM = "py:<module or file.py>:<function>"


def call_python(target: str, options: Mapping[str, Any]) -> Any:
    """Import a function and call it; whatever it returns is returned.

    Args:
        target: `"<module>:<function>"` or `"<path>.py:<function>"`; relative paths start at the working directory.
        options: What the function is called with.

    Raises:
        UnknownModelError: There is no such function.
        OptionError: The function does not take these options.
        ModelLoadError: There is no such file or module, it does not name a function, or the code raises an
            error.
    """
    try:
        function = load_object(f"py:{target}")
        if not callable(function) or isinstance(function, nn.Module):
            kind = type(function).__name__
            raise ModelLoadError(f"py:{target} is of type {kind}: name a function that returns the model")
        _check_options(function, target, options)
        with beside(target), blamed_on(f"py:{target}"):
            return function(**options)
    except CodeError as error:
        raise ModelLoadError(f"{error} (a model of your own is named {FORM})") from error
    except UnknownNameError as error:
        raise UnknownModelError(f"py:{target}", error.known) from None


def _check_options(function: Callable[..., Any], target: str, options: Mapping[str, Any]) -> None:
    try:
        inspect.signature(function).bind(**options)
    except TypeError as error:
        given = ", ".join(options) or "no options"
        raise OptionError(f"py:{target} cannot be called with {given}: {error}") from None
