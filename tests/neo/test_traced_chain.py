"""The label prior sample by sample, as graphs run it, equals the parallel form."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neotta.neo import stream
from neotta.neo.stream import StreamRule


@settings(deadline=None, max_examples=25)
@given(rows=st.integers(1, 150), classes=st.integers(3, 12), seed=st.integers(0, 10_000), weighted=st.booleans())
def test_one_by_one_equals_the_parallel_form(rows, classes, seed, weighted):
    generator = torch.Generator().manual_seed(seed)
    rule, bias = StreamRule(), torch.randn(classes, generator=generator, dtype=torch.float64)
    states = {False: rule.layout(classes).blank(2), True: rule.layout(classes).blank(2)}
    for _ in range(3):
        logits = 4 * torch.randn(2, rows, classes, generator=generator, dtype=torch.float64)
        logits[:, ::5] = torch.nan
        weights = torch.randint(0, 3, (2, rows), generator=generator).double() / 2 if weighted else None
        offsets = {}
        for traced in (False, True):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(stream, "is_exporting", lambda traced=traced: traced)
                states[traced], offsets[traced] = rule.update(states[traced], logits, weights, bias)
        torch.testing.assert_close(offsets[True], offsets[False], atol=1e-9, rtol=1e-9)
        torch.testing.assert_close(states[True], states[False], atol=1e-9, rtol=1e-9)
