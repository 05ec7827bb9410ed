"""The errors that neotta raises.

```
NeottaError
├── OptionError (ValueError)            an option is unknown, of the wrong type, or out of range
├── InputError (ValueError)             a tensor or image has the wrong size, dtype or shape
├── UnknownNameError (KeyError)         a name is not registered; the nearest one is suggested
│   ├── UnknownMethodError
│   └── UnknownModelError
├── ModelError (ValueError)             the model cannot be used this way
│   ├── HeadNotFoundError               no linear head was found, or the named layer is not one
│   ├── AmbiguousHeadError              several layers could be the head
│   ├── UnsupportedModelError           this method does not work on this model
│   ├── NotAdaptedError                 the model has no NEO head
│   ├── AlreadyAdaptedError             the model already has a different NEO head
│   └── ModelChangedError               the model's head was replaced after the adapter was created
├── ModelLoadError (OSError)            weights are missing, damaged or cannot be reached
├── StateError (ValueError)             a saved state cannot be used
│   ├── StateFileError                  the file is missing, damaged or of another format
│   └── StateMismatchError              the file belongs to another model or method
├── DataError (ValueError)              a dataset, image or archive cannot be used
├── CodeError (RuntimeError)            user code is missing, not allowed, or raises an error
├── StorageError (OSError)              results or a cache cannot be written: disk full, no permission
├── WorkerError (RuntimeError)          a worker process died or took too long
└── MissingExtraError (ImportError)     an optional package is not installed
```

Each also derives from the built-in error in brackets.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class NeottaError(Exception):
    """Base of all errors raised by neotta."""


class OptionError(NeottaError, ValueError):
    """An option is unknown, of the wrong type, or out of range."""


class InputError(NeottaError, ValueError):
    """A tensor or image has the wrong size, dtype or shape."""


class UnknownNameError(NeottaError, KeyError):
    """A name is not registered."""

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str = "") -> None:
        self.known = sorted(known)
        super().__init__(f"unknown {kind} {name!r}: {suggestion(name, self.known)}{hint and f' ({hint})'}")

    def __str__(self) -> str:  # KeyError would quote the message
        return str(self.args[0])


class UnknownMethodError(UnknownNameError):
    """No method of this name is registered."""

    def __init__(self, name: str, known: Iterable[str], hint: str = "") -> None:
        super().__init__("method", name, known, hint)


class UnknownModelError(UnknownNameError):
    """No model of this name is known."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__("model", name, known)


class ModelError(NeottaError, ValueError):
    """The model cannot be used this way."""


class HeadNotFoundError(ModelError):
    """No linear head was found, or the named layer is not one."""


class AmbiguousHeadError(ModelError):
    """Several layers could be the head; name one."""


class UnsupportedModelError(ModelError):
    """This method does not work on this model."""


class NotAdaptedError(ModelError):
    """The model has no NEO head."""


class AlreadyAdaptedError(ModelError):
    """The model already has a different NEO head."""


class ModelChangedError(ModelError):
    """The model's head was replaced after the adapter was created."""


class ModelLoadError(NeottaError, OSError):
    """Weights are missing, damaged or cannot be reached."""


class StateError(NeottaError, ValueError):
    """A saved state cannot be used."""


class StateFileError(StateError):
    """The state file is missing, damaged or of another format."""


class StateMismatchError(StateError):
    """The state belongs to another model or method."""


class DataError(NeottaError, ValueError):
    """A dataset, image or archive cannot be used."""


class CodeError(NeottaError, RuntimeError):
    """User code (`py:...`) is missing, not allowed, or raises an error."""


class StorageError(NeottaError, OSError):
    """Results or a cache cannot be written: disk full, no permission."""


class WorkerError(NeottaError, RuntimeError):
    """A worker process died or took too long."""


class MissingExtraError(NeottaError, ImportError):
    """An optional package is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package {package!r}, which is not installed: pip install 'neotta[{extra}]'"
        )


def suggestion(name: str, known: Iterable[str]) -> str:
    """Suggest the nearest known name, or list the known ones."""
    by_lower = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
    return f"did you mean {by_lower[near[0]]!r}?" if near else f"known: {', '.join(by_lower.values()) or 'none'}"
