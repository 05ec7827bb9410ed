"""Changes that `mutate.py` leaves out, since no test could notice them: by module, the change and the reason."""

from __future__ import annotations

EQUIVALENT: dict[str, dict[str, str]] = {}
