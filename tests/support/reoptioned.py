"""The same method in the same state, with other options: as recorded runs change them in the middle of a stream."""

from __future__ import annotations

from typing import Any

import neotta


def with_options(adapter: Any, **changes: Any) -> Any:
    options = {**adapter.options.given(), **changes}
    other = neotta.create(adapter.name, adapter.model, classes=adapter.classes, head=adapter.head_name, **options)
    other.load_state_dict(adapter.state_dict())
    return other
