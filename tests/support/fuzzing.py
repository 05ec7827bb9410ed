"""Foreign bytes, and values, that are almost right."""

from __future__ import annotations

import contextlib
import copy
import math
import os
import warnings

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from neotta.errors import NeottaError

STRANGE = st.sampled_from(
    [None, True, -1, 0, 2**63, -(2**70), 10**400, 0.5, 1e308, math.nan, math.inf, "", "neo", "\x00", "../x", "ü\ud800"]
) | st.sampled_from([[], {}, [[]], [None], {"": None}, [0] * 50, {"neo": {}}, ["fog"], "x" * 300, b"bytes"])


def fuzz(few):
    """Settings: so many examples, or those of `NEOTTA_FUZZ_EXAMPLES`."""
    examples = int(os.environ.get("NEOTTA_FUZZ_EXAMPLES", few))
    checks = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(max_examples=examples, suppress_health_check=checks, derandomize=True, database=None)


@st.composite
def damaged(draw, content):
    """Bytes with some of them changed, left out, put in, or the end cut off."""
    content = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(content)))
        length = draw(st.sampled_from([1, 1, 2, 4, 16, 300]))
        how = draw(st.sampled_from(["change", "change", "leave out", "put in", "repeat", "cut"]))
        if how == "change":
            new = draw(st.binary(min_size=length, max_size=length))
            content[place : place + length] = new
        elif how == "leave out":
            del content[place : place + length]
        elif how == "put in":
            content[place:place] = draw(st.binary(max_size=length))
        elif how == "repeat":
            content[place:place] = content[place : place + length]
        else:
            del content[place:]
    return bytes(content)


@st.composite
def strange(draw, value, kinds=STRANGE):
    """A value of JSON in which some entries are something else, gone, or under another name."""
    value = copy.deepcopy(value)
    for _ in range(draw(st.integers(1, 3))):
        owner, key = value, None
        while isinstance(owner, (dict, list)) and owner:
            key = draw(st.sampled_from(sorted(owner, key=str) if isinstance(owner, dict) else range(len(owner))))
            if not isinstance(owner[key], (dict, list)) or not owner[key] or draw(st.booleans()):
                break
            owner = owner[key]
        if key is None or not isinstance(owner, (dict, list)):
            return copy.deepcopy(draw(kinds))
        how = draw(st.sampled_from(["replace", "replace", "remove", "add"]))
        if how == "remove":
            del owner[key]
        elif how == "add" and isinstance(owner, dict):
            owner[draw(st.sampled_from(["", "extra", "method", "seed", "__class__"]))] = copy.deepcopy(draw(kinds))
        else:
            owner[key] = copy.deepcopy(draw(kinds))
    return value


@contextlib.contextmanager
def only_own_errors():
    """What happens in here succeeds, or raises an error of the package."""
    with warnings.catch_warnings(), contextlib.suppress(NeottaError):
        warnings.simplefilter("ignore")
        yield
