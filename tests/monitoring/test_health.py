"""`neotta.health`: what the state alone says of a stream."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import neotta
from neotta.errors import InputError, NotAdaptedError
from neotta.monitoring.health import _changed_lately, _moved_lately
from neotta.neo.stream import Estimates, Moments

CLASSES = 10


def network():
    """An ideal classifier: an embedding is its own logits."""
    head = nn.Linear(CLASSES, CLASSES)
    with torch.no_grad():
        head.weight.copy_(torch.eye(CLASSES))
        head.bias.zero_()
    return nn.Sequential(nn.Identity(), head).eval()


def rows(labels, seed=0, shift=0.0):
    generator = torch.Generator().manual_seed(seed)
    peaks = 6 * nn.functional.one_hot(torch.as_tensor(labels), CLASSES).float()
    return peaks + torch.randn(len(peaks), CLASSES, generator=generator) + shift


def feed(model, embeddings, batch=16):
    with torch.inference_mode():
        return torch.cat([model(part) for part in embeddings.split(batch)]).argmax(1)


def feed_two(model):
    """A mixed camera and one that shows one class, in the same batches."""
    for part in range(0, 320, 16):
        with neotta.streams(["yard"] * 16 + ["gate"] * 16):
            model(torch.cat([rows(MIXED)[part : part + 16], rows(ONE)[part : part + 16]]))


MIXED = np.random.default_rng(0).integers(0, CLASSES, 320)
ONE = np.full(320, 3)


def test_a_mixed_stream_with_a_shift_is_adapting():
    model = neotta.adapt(network())
    feed(model, rows(MIXED, shift=torch.linspace(-3, 3, CLASSES)))
    found = neotta.health(model)
    assert (found.verdict, found.remarks, found.samples) == ("adapting", (), 320)
    assert 0 < found.changed < 0.5
    assert found.shift > 0
    assert found.draws == pytest.approx(320, rel=0.5)
    assert str(found) == "adapting: 320 samples"


def test_what_adapts_by_its_window_is_not_said_to_be_idle():
    model = neotta.adapt(network(), prior=False)
    feed(model, rows(np.where(np.arange(640) % 10 == 0, np.tile(MIXED, 2), 3)))
    assert neotta.health(model).signs == ("hidden", "one-answer")
    feed(model, rows(MIXED[:96], seed=1, shift=torch.linspace(-3, 3, CLASSES)))
    found = neotta.health(model)
    assert found.verdict == "adapting"
    assert not {"dominated", "hidden"} & set(found.signs)


def test_a_new_stream_is_starting():
    model = neotta.adapt(network())
    assert neotta.health(model).verdict == "starting"
    assert math.isnan(neotta.health(model).top_share)
    feed(model, rows(MIXED[:4]))
    assert neotta.health(model).remarks == ("only 4 samples so far",)
    mean = neotta.adapt(network(), "neo")
    feed(mean, rows(MIXED[:4]))
    assert neotta.health(mean).verdict == "starting"
    assert math.isnan(neotta.health(mean).changed)


def test_one_class_leaves_it_idle():
    model = neotta.adapt(network())
    feed(model, rows(ONE))
    found = neotta.health(model)
    assert found.verdict == "idle"
    assert found.top_share > 0.9
    assert found.sticky > 0.5
    assert "one or two classes are visible" in str(found)
    assert any("label draws" in remark for remark in found.remarks)


def test_excluded_rows_are_counted():
    model = neotta.adapt(network())
    data = rows(MIXED)
    data[5::10] = math.nan
    with pytest.warns(RuntimeWarning, match="NaN or Inf"):
        feed(model, data)
    found = neotta.health(model)
    assert found.rejected == 32
    assert "32 samples were not learnt from" in found.remarks[0]


def test_each_stream_has_its_own_health():
    model = neotta.adapt(network(), streams=True)
    feed_two(model)
    found = neotta.health(model)
    assert list(found) == ["yard", "gate"]
    assert "one or two classes are visible" in str(found["gate"])
    assert "one or two classes are visible" not in str(found["yard"])
    assert neotta.health(model, stream="gate") == found["gate"]
    with pytest.raises(InputError, match="there is no stream"):
        neotta.health(model, stream="roof")
    with pytest.raises(InputError, match="no streams"):
        neotta.health(neotta.adapt(network()), stream="gate")


def test_a_class_that_dominates_is_worth_a_remark():
    model = neotta.adapt(network())
    feed(model, rows(np.where(np.arange(320) % 4 < 3, 3, MIXED)))
    found = neotta.health(model)
    assert found.verdict == "idle"
    assert found.top_share == pytest.approx(0.77, abs=0.05)
    assert "one class has more than half" in found.remarks[0]


def test_a_binary_head_has_nothing_to_subtract():
    model = neotta.adapt(nn.Sequential(nn.Linear(4, 2)).eval(), head="0")
    feed(model, torch.randn(64, 4))
    assert neotta.health(model).verdict == "idle"
    assert "fewer than three classes" in neotta.health(model).remarks[0]
    assert neotta.health(model).signs == ("few-classes",)  # not that frames repeat


def test_frames_that_repeat_and_frozen_ones_are_told():
    model = neotta.adapt(network())
    feed(model, rows(MIXED[:1]).repeat(64, 1))
    assert "all alike" in str(neotta.health(model))
    feed(model, rows(MIXED[:64]).repeat_interleave(8, 0))
    assert "frames repeat" in str(neotta.health(model))


def test_a_shift_that_came_lately_is_told():
    model = neotta.adapt(network())
    steps = torch.linspace(-1.5, 1.5, CLASSES)
    for seed in range(4):
        feed(model, rows(MIXED, seed, shift=steps))
    assert "changed lately" not in str(neotta.health(model))
    feed(model, rows(MIXED[:128], 5, shift=-steps))
    assert "the shift has changed lately" in str(neotta.health(model))


@pytest.mark.parametrize(("changed", "differs"), [(40, False), (60, True)])
def test_more_than_half_of_the_answers_changed_is_worth_a_remark(changed, differs):
    model = neotta.adapt(network())
    feed(model, rows(MIXED[:100]))
    streams = neotta.head(model).streams
    streams.table[0, 2] = changed
    assert ("differs" in neotta.health(model).signs) is differs


def test_every_remark_has_a_sign_for_programs():
    model = neotta.adapt(network())
    assert neotta.health(model).signs == ("few-samples",)
    model(rows([0] * 64))
    found = neotta.health(model)
    assert len(found.signs) == len(found.remarks) > 0
    assert {"hidden", "dominated", "alike"} & set(found.signs)
    assert neotta.health(neotta.adapt(network(), "neo")).signs == ("cannot-tell",)


def test_a_stream_that_shows_other_things_has_changed():
    model = neotta.adapt(network())
    generator = np.random.default_rng(0)
    model(rows(generator.integers(0, 5, 200)))
    assert "changed" not in neotta.health(model).signs
    model(rows(generator.integers(5, CLASSES, 200), seed=1))
    assert "changed" in neotta.health(model).signs


@pytest.mark.parametrize("method", ["neo-stream", "neo"])
def test_an_adapter_has_the_health_of_the_model(method):
    model, adapter = neotta.adapt(network(), method), neotta.create(method, network())
    data = rows(MIXED, shift=torch.linspace(-3, 3, CLASSES))
    model(data), adapter(data)
    found, other = vars(neotta.health(model)), vars(neotta.health(adapter))
    assert found["verdict"] == "adapting"
    np.testing.assert_equal(other, found)  # NaN included


def test_the_health_of_other_methods_is_not_known():
    with pytest.raises(NotAdaptedError, match="t3a"):
        neotta.health(neotta.create("t3a", network()))


@pytest.mark.parametrize(
    ("step", "visible", "mixed", "changed"),
    [(2.1, True, True, True), (1.9, True, True, False), (9.0, False, True, False), (9.0, True, False, False)],
)
def test_the_shift_has_changed_where_its_step_is_twice_the_noise_of_both_scales(step, visible, mixed, changed):
    spreads = torch.ones(1, 2, 2)
    shift, noise = torch.zeros(1, 2, 3), torch.tensor([[0.25, 0.75]])
    shift[0, 1, 0] = step
    skewed, balanced = (torch.tensor([[1.0, 1.0 if good else -1.0]]) for good in (visible, mixed))
    assert _changed_lately(Estimates(shift, noise, skewed, balanced, shift, spreads)) is changed


@pytest.mark.parametrize(
    ("weight", "draws"),
    [(16.0, 64 / 3), (32.0, 64.0), (40.0, 64.0), (200.0, 200.0)],  # weights that faded one by one are worth more
)
def test_a_stream_has_changed_where_its_mean_moved_beyond_chance(weight, draws):
    def moments(count, mean):
        sums = torch.zeros(3 + 4 * 3)
        sums[0], sums[9] = count * mean, count
        return Moments.of(sums)

    for beyond, variance in ((1.05, 1.0), (0.95, 1.0), (1.05, 4.0), (0.95, 4.0)):
        step = beyond * math.sqrt(2.5 * variance / draws)
        moved = _moved_lately(moments(1000, 2.0), moments(weight, 2.0 + step), variance, 32.0)
        assert moved is (beyond > 1), (weight, step)
    assert not _moved_lately(moments(1000, 2.0), moments(1.4, 99.0), 1.0, 32.0), "too few to say"
    assert not _moved_lately(moments(1000, 2.0), moments(0.0, 0.0), 1.0, 32.0)


def test_the_figures_are_those_of_the_stream():
    model, shift = neotta.adapt(network()), torch.linspace(-3, 3, CLASSES)
    data = rows(MIXED, shift=shift)
    data[:17] = math.nan
    with pytest.warns(RuntimeWarning, match="NaN or Inf"):
        answers = feed(model, data)
    found, state = neotta.health(model), neotta.head(model).streams
    fields = state.rule.state(state.state(None))
    spread = float(data[17:].var(0, correction=0).sum().sqrt())
    assert found.sticky == pytest.approx(float(fields.sticky))
    assert found.shift == pytest.approx(float(fields.shift.norm()) / spread, rel=0.02)
    assert found.shift == pytest.approx(float((shift - shift.mean()).norm()) / spread, rel=0.2)
    assert found.samples == 303
    assert found.changed == pytest.approx(float((answers != data.argmax(1))[17:].sum()) / 303)
    assert found.changed > 0


@pytest.mark.parametrize(("bad", "told"), [(5, False), (6, True)])
def test_one_sample_in_twenty_may_be_rejected(bad, told):
    model, data = neotta.adapt(network()), rows(MIXED[:105])
    data[:bad] = math.inf
    with pytest.warns(RuntimeWarning, match="NaN or Inf"):
        feed(model, data[: 100 + bad], batch=200)
    assert ("rejected" in neotta.health(model).signs) is told


def test_sixteen_samples_are_a_start():
    model = neotta.adapt(network())
    feed(model, rows(MIXED[:15]))
    assert neotta.health(model).verdict == "starting"
    feed(model, rows(MIXED[15:16]))
    assert neotta.health(model).verdict != "starting"


@pytest.mark.parametrize("prior", [True, False])
def test_the_top_share_is_that_of_the_most_frequent_class(prior):
    model = neotta.adapt(network(), prior=prior)
    feed(model, rows(np.where(np.arange(320) % 4 < 3, 3, MIXED)), batch=320)
    share = float((np.where(np.arange(320) % 4 < 3, 3, MIXED) == 3).mean())
    assert neotta.health(model).top_share == pytest.approx(share, abs=0.08)


def test_without_a_label_prior_answers_differ_by_an_earlier_shift():
    model = neotta.adapt(network(), prior=False, window=None)
    feed(model, rows(MIXED, shift=torch.linspace(-3, 3, CLASSES)))
    assert neotta.health(model).changed > 0
    feed(model, rows(np.full(4000, 3)), batch=400)
    found = neotta.health(model)
    assert found.verdict == "idle"
    assert "by an earlier shift" in str(found)


# ---- health never contradicts itself


def test_answers_that_differ_while_no_shift_is_subtracted_are_explained():
    model, plain = neotta.adapt(network()), network()
    data = rows(ONE) - 4 * nn.functional.one_hot(torch.as_tensor(ONE), CLASSES)  # hardly recognised one by one
    changed = float((feed(model, data) != feed(plain, data)).float().mean())
    found = neotta.health(model)
    assert (found.verdict, found.shift) == ("idle", 0.0)
    assert changed > 0.05
    assert found.changed == pytest.approx(changed)
    assert "prior" in found.signs
    assert any(f"{changed:.1%}" in remark and "label prior" in remark for remark in found.remarks)


@pytest.mark.parametrize(("share", "told"), [(0.53, False), (0.57, True)])
def test_one_of_ten_classes_has_most_from_55_percent_on(share, told):
    model = neotta.adapt(network())
    feed(model, rows(MIXED))
    streams = neotta.head(model).streams
    seen, *counts = streams.rule.state(streams.table).labels[0, 0]
    for label, count in enumerate(counts):
        count.fill_(float(seen) * CLASSES * (share if label == 3 else (1 - share) / 9))
    found = neotta.health(model)
    assert found.top_share == pytest.approx(share, abs=1e-6)
    assert ("one-answer" in found.signs) is told


@pytest.mark.parametrize("labels", [ONE, np.where(np.arange(320) % 4 < 3, 3, MIXED)])
def test_one_answer_for_most_images_is_always_told(labels):
    model = neotta.adapt(network())
    answers = feed(model, rows(labels))
    assert float((answers == 3).float().mean()) > 0.55
    assert "one-answer" in neotta.health(model).signs
    mixed = neotta.adapt(network())
    feed(mixed, rows(MIXED))
    assert "one-answer" not in neotta.health(mixed).signs


def test_no_shift_is_visible_only_where_one_could_be_seen():
    model = neotta.adapt(network())
    feed(model, rows(MIXED))
    assert "no-shift" in neotta.health(model).signs, "what all time shows, not the window"
    signs = {}
    for count in (20, 320):
        for seed in range(20):
            model = neotta.adapt(network(), window=None)
            labels = np.random.default_rng(seed).integers(0, CLASSES, count)
            feed(model, rows(labels, seed))
            signs.setdefault(count, set()).update({"no-shift", "unclear"} & set(neotta.health(model).signs))
    assert signs == {20: {"unclear"}, 320: {"no-shift"}}
