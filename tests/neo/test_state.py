"""The layout of states: fields are columns of one table."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neotta.neo.mean import MeanRule
from neotta.neo.state import LARGEST, TALLIES, Field, Layout, taken, widest
from neotta.neo.stream import StreamRule

SHAPES = st.lists(st.sampled_from([(), (1,), (3,), (2, 3), (2, 1, 2)]), max_size=5)


def layout_of(shapes, merges="sum"):
    kinds = {f"field {n}": Field(shape, "keep" if n % 2 else "sum", start=n / 4) for n, shape in enumerate(shapes)}
    return Layout(kinds)


@settings(max_examples=40)
@given(shapes=SHAPES, streams=st.integers(0, 4))
def test_joining_is_the_opposite_of_splitting(shapes, streams):
    layout = layout_of(shapes)
    states = torch.randn(streams, layout.width, dtype=torch.float64)
    fields = layout.split(states)
    assert [tuple(field.shape) for field in fields] == [(streams, *f.shape) for f in layout.fields.values()]
    assert torch.equal(layout.join(fields), states)
    assert layout.width == len(TALLIES) + sum(math.prod(shape) for shape in shapes)


def test_fields_are_views():
    layout = layout_of([(), (2, 3)])
    states = layout.blank(2)
    for field in layout.split(states):
        field.fill_(7.0)
    assert (states == 7).all()


def test_a_blank_state_holds_the_start_of_every_field():
    layout = layout_of([(2,), (), (2, 2)])
    assert layout.blank(2).tolist() == [[0, 0, 0, 0, 0, 0.25, 0.5, 0.5, 0.5, 0.5]] * 2
    assert layout.blank().dtype == torch.float64
    assert layout.blank(0).shape == (0, 10)
    assert layout.blank(3, "meta").device.type == "meta"


def test_a_merge_adds_or_keeps():
    layout = layout_of([(2,), (3,)])
    one, other = torch.randn(2, 4, layout.width, dtype=torch.float64).unbind()
    merged = dict(zip(layout.fields, layout.split(layout.merged(one, other)), strict=True))
    for name, field, mine, theirs in zip(
        layout.fields, layout.fields.values(), layout.split(one), layout.split(other), strict=True
    ):
        assert torch.equal(merged[name], mine + theirs if field.merge == "sum" else mine)
    assert layout.sums(one.device).tolist() == [True] * 5 + [False] * 3


@pytest.mark.parametrize("size", [3, 10, 1000])
def test_a_state_of_neo_stream_is_fifteen_numbers_per_class_and_fourteen(size):
    assert StreamRule().layout(size).width == 15 * size + 14
    assert MeanRule().layout(size).width == size + 5
    for rule in (StreamRule(), MeanRule()):
        states = torch.arange(2.0 * rule.layout(size).width).view(2, -1)
        state = rule.state(states)
        assert torch.equal(torch.cat([part.reshape(2, -1) for part in state], 1), states)
        assert list(rule.layout(size).fields)[-1] == state._fields[-1]
        blank = rule.layout(size).blank(2)
        assert rule.offset(blank).shape == rule.standing(blank).shape == (2, size)
        assert not rule.standing(blank).any()


def test_rows_that_cannot_be_learnt_from_count_nothing():
    rows = torch.ones(1, 5, 2, dtype=torch.float64)
    rows[0, 1, 0], rows[0, 2, 1], rows[0, 3, 0] = math.nan, -math.inf, 1.01 * LARGEST
    usable, weights, counted, rejected = taken(rows, None)
    assert counted[0].tolist() == weights[0].tolist() == [1, 0, 0, 0, 1]
    assert rejected[0].tolist() == [False, True, True, True, False]
    assert usable.isfinite().all()
    given_weights = torch.tensor([[0.5, 0.0, 3.0, 1.0, 0.0]], dtype=torch.float64)
    _, weights, counted, rejected = taken(rows, given_weights)
    assert weights[0].tolist() == [0.5, 0, 0, 0, 0]
    assert counted[0].tolist() == [1, 0, 0, 0, 0]
    assert rejected[0].tolist() == [False, False, True, True, False]
    assert taken(torch.full((1, 1, 2), LARGEST), None)[2].item() == 1


def test_the_most_precise_dtype_of_a_device():
    assert widest(torch.device("cpu")) == widest(torch.device("cuda")) == torch.float64
    assert widest(torch.device("mps")) == torch.float32


def test_rules_of_one_name_have_columns_of_their_own():
    class Other(StreamRule):
        def fields(self, size):
            return {"only": Field((size,))}

    Other.__name__ = "StreamRule"
    assert StreamRule().layout(4).width == 15 * 4 + 14
    assert list(Other().layout(4).fields) == ["tallies", "only"]
    assert list(StreamRule().layout(4).fields)[-1] == "labels"
