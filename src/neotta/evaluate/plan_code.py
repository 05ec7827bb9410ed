"""Code that a plan would run: plans come from strangers, too, so that is asked for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from neotta.errors import CodeError

_OWN = re.compile(r"(^|\+)\s*py:")
CODE_OPTIONS = frozenset({"trust_remote_code", "code_revision", "use_kernels", "kernel_config", "custom_generate"})
"""Options of transformers that run code of the model's folder or repository."""


def check_code(entries: Mapping[str, Any], source: str, *, allowed: bool, typed: bool = False) -> None:
    """Refuse entries that run code, unless that is allowed.

    Args:
        entries: Of a plan or study, as they were read.
        source: Where they come from.
        allowed: Whether they may run code.
        typed: Whether the user typed them: naming her own code (`py:`) is then what she wants.

    Raises:
        CodeError: They would run code.
    """
    found = [] if allowed else [text for text in code_in(entries) if not (typed and _OWN.search(text))]
    if found:
        raise CodeError(f"{source} runs code ({', '.join(found)}): pass --allow-code if you trust it")


def code_in(value: Any, name: str = "") -> Iterator[str]:
    """What in the entries of a plan runs code: `py:` names, and options that load code with a model."""
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield from code_in(entry, str(key))
    elif isinstance(value, (list, tuple)):
        for entry in value:
            yield from code_in(entry, name)
    elif (name in CODE_OPTIONS and value) or _is_hub_kernel(name, value):
        yield f"{name}={value}"
    elif isinstance(value, str) and _OWN.search(value):
        yield value


def _is_hub_kernel(name: str, value: Any) -> bool:
    """Transformers downloads and runs an implementation of attention that is named like a repository."""
    return name.endswith("attn_implementation") and isinstance(value, str) and "/" in value
