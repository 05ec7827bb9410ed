"""Every error that neotta raises on purpose.

```
NeottaError
├── OptionError (ValueError)            an option is unknown, of the wrong type, or out of range
├── InputError (ValueError)             a tensor or image cannot be used: size, dtype, shape
├── UnknownNameError (KeyError)         a name is not registered; the nearest one is suggested
│   ├── UnknownMethodError
│   └── UnknownModelError
├── ModelError (ValueError)             the model cannot be used as asked
│   ├── HeadNotFoundError               no linear head, or the layer named is not one
│   ├── AmbiguousHeadError              several layers could be the head
│   ├── UnsupportedModelError           this method cannot work on this model
│   ├── NotAdaptedError                 the model carries no NEO head
│   ├── AlreadyAdaptedError             the model carries one already, of another kind
│   └── ModelChangedError               the model's head was exchanged behind an adapter's back
├── ModelLoadError (OSError)            weights are missing, damaged or cannot be reached
├── StateError (ValueError)             a saved state cannot be used
│   ├── StateFileError                  the file is missing, damaged or of another format
│   └── StateMismatchError              the file belongs to another model or method
├── DataError (ValueError)              a dataset, image or archive cannot be used
├── CodeError (RuntimeError)            code of the user's own is missing, or raises an error
├── StorageError (OSError)              results or a cache cannot be written: disk full, no permission
├── WorkerError (RuntimeError)          a process started for a piece of work died or took too long
└── MissingExtraError (ImportError)     an optional package is not installed
```

Each also derives from the built-in error in brackets, so that code which does not know neotta can catch it.
Messages say what was wrong, what was got, and what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class NeottaError(Exception):
    """Base of all errors raised by neotta."""


class OptionError(NeottaError, ValueError):
    """An option is unknown, of the wrong type, or out of range."""


class InputError(NeottaError, ValueError):
    """A tensor or image cannot be used: its size, dtype or shape is wrong."""


class UnknownNameError(NeottaError, KeyError):
    """A name is not registered."""

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str = "") -> None:
        self.known = sorted(known)
        super().__init__(f"unknown {kind} {name!r}: {suggestion(name, self.known)}{hint and f' ({hint})'}")

    def __str__(self) -> str:  # KeyError would show the message in quotes
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
    """The model cannot be used as asked."""


class HeadNotFoundError(ModelError):
    """The model has no linear head, or the layer named is not one."""


class AmbiguousHeadError(ModelError):
    """Several layers could be the head; the caller has to name one."""


class UnsupportedModelError(ModelError):
    """This method cannot work on this model."""


class NotAdaptedError(ModelError):
    """The model carries no NEO head."""


class AlreadyAdaptedError(ModelError):
    """The model carries a NEO head already, of another kind."""


class ModelChangedError(ModelError):
    """The model's head was exchanged after the adapter was made."""


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
    """Code of the user's own (`py:...`) is missing, or raises an error."""


class StorageError(NeottaError, OSError):
    """Results or a cache cannot be written: the disk is full, or it is not allowed."""


class WorkerError(NeottaError, RuntimeError):
    """A process started for a piece of work died or took too long."""


class MissingExtraError(NeottaError, ImportError):
    """An optional package is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package {package!r}, which is not installed: pip install 'neotta[{extra}]'"
        )


def suggestion(name: str, known: Iterable[str]) -> str:
    """What somebody may have meant by a name that is not known, or else what is known."""
    by_lower = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
    return f"did you mean {by_lower[near[0]]!r}?" if near else f"known: {', '.join(by_lower.values()) or 'none'}"
