"""NEO-Stream in a model: one stream, many streams, saved, merged, folded, compiled."""

from __future__ import annotations

import copy

import pytest
import torch
from support.slow_neo_stream import SlowStream
from support.stream_models import CLASSES, FEATURES, answer, batch, plain
from torch import nn

import neotta
from neotta.errors import AlreadyAdaptedError, InputError, OptionError, StateMismatchError
from neotta.neo.mean import MeanRule
from neotta.neo.stream import StreamRule
from neotta.neo.surgery import adaptation


def adapted(**options):
    return neotta.adapt(plain(), "neo-stream", head="classes", **options)


@torch.no_grad()
def by_hand(data, sizes, **options):
    """The answers to batches of these sizes, by the rule's formulas."""
    head = plain().classes
    stream = SlowStream(head.bias.double().tolist(), **options)
    answers = [stream.step(head(part).double().tolist(), [1.0] * len(part)) for part in data.split(sizes)]
    return torch.tensor([row for part in answers for row in part])


@pytest.mark.parametrize("options", [{}, {"prior": False}, {"window": None}, {"gate": 0.3, "stay": 0.9}], ids=str)
def test_the_model_answers_as_the_rule_does(options):
    model, data, sizes = adapted(**options), batch(40), [1, 7, 16, 3, 13]
    with torch.no_grad():
        logits = torch.cat([model(part) for part in data.split(sizes)])
    torch.testing.assert_close(logits, by_hand(data, sizes, **options), rtol=1e-5, atol=1e-5)
    assert neotta.head(model).count == 40


def test_the_first_sample_gets_the_plain_answer_and_frozen_nothing_changes():
    model = adapted()
    with torch.no_grad():
        torch.testing.assert_close(model(batch(1)), plain()(batch(1)))
        model(batch(20))
        neotta.head(model).freeze()
        before = neotta.head(model).streams.state()
        first = model(batch(5))
        assert torch.equal(first, model(batch(5)))
    assert torch.equal(before, neotta.head(model).streams.state())


def test_each_stream_answers_as_it_would_alone(tmp_path):
    options = {"streams": True, "capacity": 4, "folder": tmp_path}
    together, apart = adapted(**options), {name: adapted() for name in "abcdef"}
    for turn in range(6):
        ids = [["a", "b", "a", "c"], ["d", "e"], ["f", "a", "a"], ["b"], ["c", "c", "b", "e"], ["a", "f"]][turn]
        data = batch(len(ids), turn)
        logits = answer(together, data, ids)
        for name in set(ids):
            mine = torch.tensor([each == name for each in ids])
            with torch.no_grad():
                torch.testing.assert_close(logits[mine], apart[name](data[mine]), rtol=1e-5, atol=1e-5)
    streams = neotta.head(together).streams
    assert streams.counts() == {"a": 5, "b": 3, "c": 3, "d": 1, "e": 2, "f": 2}
    for name, model in apart.items():
        torch.testing.assert_close(streams.state(name), neotta.head(model).streams.state(), rtol=1e-5, atol=1e-5)


def test_saved_and_loaded_it_continues_to_the_bit(tmp_path):
    model, twin = adapted(), plain()
    with torch.no_grad():
        model(batch(20))
        neotta.save(model, tmp_path / "s")
        neotta.load(twin, tmp_path / "s")
        assert torch.equal(model(batch(9, 2)), twin(batch(9, 2)))
    with pytest.raises(StateMismatchError, match="expected neo "):
        neotta.load(neotta.adapt(plain(), "neo", head="classes"), tmp_path / "s")


def test_merged_the_moments_over_all_time_add_up():
    one, other, both = adapted(prior=False), adapted(prior=False), adapted(prior=False)
    with torch.no_grad():
        for row in batch(30).split(1):
            one(row)
        for row in batch(30, 2).split(1):
            other(row)
    neotta.load(both, neotta.merge([one, other]))
    rule = neotta.head(one).streams.rule
    a, b, c = (rule.state(neotta.head(model).streams.state()) for model in (one, other, both))
    assert c.tallies[0, 0] == 60
    torch.testing.assert_close(c.scales[:, 0], a.scales[:, 0] + b.scales[:, 0])
    empty = neotta.merge([one, adapted(prior=False)])
    torch.testing.assert_close(torch.from_numpy(empty.heads["classes"].arrays()["ever"]), a.scales[0, 0])


def test_folded_the_shift_is_in_the_bias():
    model = adapted(prior=False)
    with torch.no_grad():
        for seed in range(5):
            model(batch(50, seed))
        neotta.head(model).freeze()
        frozen = model(batch(8))
        shift = neotta.head(model).offset()
        neotta.fold(model)
        assert type(model.classes) is nn.Linear
        torch.testing.assert_close(model(batch(8)), frozen, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(model.classes.bias, plain().classes.bias - shift.float())


def test_bad_rows_are_answered_and_kept_out():
    model, clean = adapted(), adapted()
    data = batch(10)
    spoilt = data.clone()
    spoilt[4, 2] = float("nan")
    good = [row for row in range(10) if row != 4]
    with torch.no_grad():
        clean(data[good])
        with pytest.warns(RuntimeWarning, match="1 rows contain NaN"):
            logits = model(spoilt)
    assert not logits[4].isfinite().any()
    mine, theirs = (neotta.head(each).streams.state() for each in (model, clean))
    assert mine[0, :2].tolist() == [9, 1]
    torch.testing.assert_close(mine[:, 2:], theirs[:, 2:], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes_and_an_empty_batch(dtype):
    model = adapted().to(dtype)
    with torch.no_grad():
        assert model(batch(8).to(dtype)).dtype == dtype
        assert model(batch(0).to(dtype)).shape == (0, CLASSES)
    assert neotta.head(model).streams.table.dtype == torch.float64
    assert neotta.head(copy.deepcopy(model)).count == 8


def test_without_the_prior_it_compiles_to_one_graph():
    torch._dynamo.reset()
    model, eager = adapted(prior=False), adapted(prior=False)
    compiled = torch.compile(model, backend="eager", fullgraph=True, dynamic=True)
    with torch.no_grad():
        for rows in (4, 9, 9, 2):
            torch.testing.assert_close(compiled(batch(rows)), eager(batch(rows)), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(neotta.head(model).streams.state(), neotta.head(eager).streams.state())


def test_a_binary_head_gets_the_plain_answer():
    linear = nn.Linear(FEATURES, 2)
    model = neotta.adapt(nn.Sequential(copy.deepcopy(linear)), "neo-stream")
    with torch.no_grad():
        for seed in range(3):
            torch.testing.assert_close(model(batch(20, seed)), linear(batch(20, seed)))


def test_wrong_options_and_a_state_of_another_rule():
    for wrong in ({"gate": -0.1}, {"stay": 1.0}, {"window": 0.0}, {"prior": "no"}, {"alpha": 0.1}):
        with pytest.raises(OptionError, match=next(iter(wrong))):
            adapted(**wrong)
    with pytest.raises(InputError, match="streams=True"):
        neotta.reset(adapted(), stream="a")


def test_it_is_what_adapt_does_without_a_name():
    model = neotta.adapt(plain(), head="classes")
    assert type(neotta.head(model).streams.rule) is StreamRule
    assert "neo-stream" in str(adaptation(model))
    assert neotta.adapt(model, "neo-stream") is model
    with pytest.raises(AlreadyAdaptedError, match="already adapted with neo-stream"):
        neotta.adapt(model, "neo")
    assert type(neotta.head(neotta.adapt(plain(), "neo")).streams.rule) is MeanRule
    assert type(neotta.NEOHead(nn.Linear(FEATURES, CLASSES)).streams.rule) is MeanRule


@pytest.mark.parametrize(("options", "method"), [
    ({"shrinkage": "james-stein"}, "neo"), ({"alpha": 0.1}, "neo-continual"), ({"statistics": "batch"}, "neo-bn"),
])  # fmt: skip
def test_options_of_another_rule_are_told_where_they_belong(options, method):
    (name, value), *_ = options.items()
    with pytest.raises(OptionError, match=rf"no option '{name}'.*neotta\.adapt\(model, '{method}', {name}={value!r}\)"):
        neotta.adapt(plain(), **options)


def test_the_smallest_options_are_taken():
    for options in ({"gate": 0.0}, {"stay": 1e-9}, {"window": 0.5}):
        model = adapted(**options)
        with torch.no_grad():
            assert torch.isfinite(model(batch(8))).all()


def test_rows_without_weight_and_batches_of_them_are_not_counted():
    model = adapted()
    with torch.no_grad():
        with neotta.rows([1, 0, 0]):
            model(batch(3))
        with neotta.rows([0, 0, 0]):
            model(batch(3))
    assert neotta.head(model).streams.state()[0, :2].tolist() == [1, 0]


def test_three_classes_are_enough_for_a_shift_and_two_are_not():
    torch.manual_seed(0)
    data = torch.randn(300, 3) + 4 * torch.eye(3).repeat(100, 1) + torch.tensor([0.0, 0.0, 3.0])
    for classes in (2, 3):
        head = nn.Linear(classes, classes)
        nn.init.eye_(head.weight), nn.init.zeros_(head.bias)
        model = neotta.adapt(nn.Sequential(nn.Identity(), head), "neo-stream", head="1", prior=False)
        rows = data[:, :classes]
        with torch.no_grad():
            differs = (torch.cat([model(part) for part in rows.split(30)]) - rows).abs().max() > 0.1
        assert bool(differs) == (classes == 3)
