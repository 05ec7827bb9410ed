"""The contract that every method keeps, as checks to run on a method of your own.

```python
neotta.testing.check_adapter("my-method")           # raises an AssertionError that lists what is not kept
```

Or one pytest test for each check:

```python
@pytest.mark.parametrize("check", neotta.testing.contract("my-method"), ids=str)
def test_contract(check):
    check()
```
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from neotta.adapters.registry import find
from neotta.errors import UnsupportedModelError
from neotta.testing._case import MODELS, Case
from neotta.testing._checks import CHECKS

__all__ = ["CHECKS", "MODELS", "Case", "Check", "check_adapter", "contract"]


@dataclass(frozen=True)
class Check:
    """One promise of the contract, for a method on one kind of model; call it to check."""

    run: Callable[[Case], None]
    case: Case

    def __call__(self) -> None:
        """Check the promise.

        Raises:
            AssertionError: The method does not keep the promise.
        """
        self.run(self.case)

    def __str__(self) -> str:
        return f"{self.run.__name__}-{self.case}"


def contract(
    method: str | Sequence[str],
    *,
    models: Mapping[str, Callable[[], nn.Module]] = MODELS,
    most_passes: Mapping[str, Any] | None = None,
    **options: Any,
) -> list[Check]:
    """All checks of the contract for a method, on each kind of model that it supports.

    Args:
        method: A name, a stack, or `py:path/to/file.py:Class`.
        models: Makers of models for images of (B, 3, 32, 32), with at least six classes. A kind is left out if the
            method raises UnsupportedModelError on it.
        most_passes: Options with which the method takes the most forward passes, if the defaults may take fewer.
        **options: Options of the method. Those that its declaration asks for are filled in.

    Raises:
        UnsupportedModelError: The method works on none of the models.
    """
    find(method)
    cases = [Case(method, kind, make, options, most_passes or {}) for kind, make in models.items()]
    supported = [case for case in cases if case.is_supported()]
    if not supported:
        raise UnsupportedModelError(f"the method {method!r} works on none of the models {', '.join(models)}")
    return [Check(check, case) for case in supported for check in CHECKS]


def check_adapter(method: str | Sequence[str], **arguments: Any) -> None:
    """Run the whole contract on a method.

    Args:
        method: A name, a stack, or `py:path/to/file.py:Class`.
        **arguments: As for `contract`: `models`, `most_passes`, and the options of the method.

    Raises:
        AssertionError: Promises are not kept; the message lists them all.
    """
    failures: list[tuple[Check, Exception]] = []
    for check in contract(method, **arguments):
        try:
            check()
        except Exception as error:  # whatever a method raises where it should not
            failures.append((check, error))
    if failures:
        lines = [f"{check}: {type(error).__name__}: {error}" for check, error in failures]
        raise AssertionError("\n".join([f"{method!r} breaks the contract:", *lines])) from failures[0][1]
