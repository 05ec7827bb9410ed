"""`neotta.health` and `on_harm`: streams that help and streams that hurt, without labels."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

import neotta
from neotta.errors import InputError, OptionError
from neotta.neo.recent_answers import WINDOW, RecentAnswers

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


def test_a_mixed_stream_is_good():
    model = neotta.adapt(network())
    feed(model, rows(MIXED, shift=torch.linspace(-3, 3, CLASSES)))
    found = neotta.health(model)
    assert (found.verdict, found.remarks, found.samples) == ("good", (), 320)
    assert found.skewness > 1
    assert found.shift > 0
    assert found.draws == pytest.approx(320, rel=0.5)
    assert str(found) == "good: 320 samples"


def test_a_new_stream_is_starting():
    model = neotta.adapt(network())
    assert neotta.health(model).verdict == "starting"
    assert math.isnan(neotta.health(model).disagreement)
    feed(model, rows(MIXED[:4]))
    assert "only 4 samples so far: answers are nearly those of the plain model" in neotta.health(model).remarks[0]
    mean = neotta.adapt(network(), "neo")
    feed(mean, rows(MIXED[:4]))
    assert "only 4 samples so far: their mean is mostly the samples themselves" in neotta.health(mean).remarks[0]


def test_one_class_leaves_it_idle():
    model = neotta.adapt(network())
    feed(model, rows(ONE))
    found = neotta.health(model)
    assert found.verdict == "idle"
    assert found.disagreement == 0
    assert found.top_share == 1
    assert found.classes == pytest.approx(1)
    assert found.sticky > 0.5
    assert "fewer than about three classes: nothing is subtracted" in str(found)
    assert any("label draws" in remark for remark in found.remarks)


def test_bad_rows_and_outliers_are_told():
    model = neotta.adapt(network())
    data = rows(MIXED)
    data[::10] *= 100
    data[5::10] = math.nan
    with pytest.warns(RuntimeWarning, match="NaN or Inf"):
        feed(model, data)
    found = neotta.health(model)
    assert found.rejected == 32
    assert found.outliers > 0.05
    assert found.verdict == "watch"
    assert len(found.remarks) == 2


def test_classes_hidden_by_outliers_are_not_called_few():
    model = neotta.adapt(network())
    data = rows(MIXED)
    data[::20] = 1e4 * torch.randn(len(data[::20]), CLASSES, generator=torch.Generator().manual_seed(1))
    feed(model, data)
    found = neotta.health(model)
    assert found.verdict == "idle"
    assert "fewer than about three classes" not in str(found)
    assert "outliers are so large that the classes cannot be told apart: nothing is subtracted" in str(found)
    assert "frames repeat" not in str(found)


def test_each_stream_has_its_own_health():
    model = neotta.adapt(network(), streams=True)
    feed_two(model)
    found = neotta.health(model)
    assert {name: health.verdict for name, health in found.items()} == {"yard": "good", "gate": "idle"}
    assert neotta.health(model, stream="gate") == found["gate"]
    with pytest.raises(InputError, match="there is no stream"):
        neotta.health(model, stream="roof")
    with pytest.raises(InputError, match="no streams"):
        neotta.health(neotta.adapt(network()), stream="gate")


def test_neo_is_caught_on_one_class():
    model = neotta.adapt(network(), "neo", on_harm="warn")
    with pytest.warns(RuntimeWarning, match="adapting hurts: .* too few classes"):
        answers = feed(model, rows(ONE))
    assert (answers[-64:] == 3).float().mean() < 0.5
    assert neotta.health(model).verdict == "harm"
    feed(model, rows(ONE))  # and not warned of again


def test_neo_is_left_alone_on_a_mixed_stream():
    model = neotta.adapt(network(), "neo", on_harm="restore")
    shifted = rows(MIXED, shift=torch.linspace(-3, 3, CLASSES))
    answers = feed(model, shifted)
    assert neotta.health(model).verdict != "harm"
    assert torch.equal(answers, feed(neotta.adapt(network(), "neo"), shifted))


@pytest.mark.parametrize("before", [0, 320])
def test_restore_goes_back_to_the_last_good_state_or_to_plain_answers(before):
    model = neotta.adapt(network(), "neo", on_harm="restore")
    feed(model, rows(MIXED[:before]))
    with pytest.warns(RuntimeWarning, match="went back to its last good state"):
        feed(model, rows(np.resize(ONE, 4000), seed=1))
    held = neotta.head(model).centre()
    assert bool(held.any()) == bool(before)
    assert (feed(model, rows(ONE, seed=2)) == 3).float().mean() > 0.95
    assert (feed(model, rows(MIXED, seed=3)).numpy() == MIXED).mean() > 0.95
    assert torch.equal(neotta.head(model).centre(), held), "it learns no more"
    neotta.reset(model)
    feed(model, rows(MIXED))
    assert neotta.head(model).count == 320, "until it is reset"


def test_freeze_holds_one_stream_and_not_the_others():
    model = neotta.adapt(network(), "neo", streams=True, on_harm="freeze")
    with pytest.warns(RuntimeWarning, match="adapting stream 'gate' hurts: .* it learns no more"):
        feed_two(model)
    counts = neotta.head(model).streams.counts()
    assert counts["yard"] == 320
    assert WINDOW <= counts["gate"] < 320


def test_a_function_is_called_once():
    calls = []
    model = neotta.adapt(network(), "neo", on_harm=lambda stream, reason: calls.append((stream, reason)))
    feed(model, rows(ONE))
    assert len(calls) == 1
    assert calls[0][0] is None
    assert "plain model's" in calls[0][1]


def test_a_wrong_action_changes_nothing():
    model = network()
    with pytest.raises(OptionError, match="on_harm is 'stop'"):
        neotta.adapt(model, on_harm="stop")
    assert type(model[1]) is nn.Linear


def test_copies_are_watched_on_their_own():
    model = neotta.adapt(network(), "neo", on_harm="warn")
    feed(model, rows(MIXED))
    twin = copy.deepcopy(model)
    with pytest.warns(RuntimeWarning, match="adapting hurts"):
        feed(twin, rows(np.resize(ONE, 4000)))
    assert neotta.health(model).verdict != "harm"


@pytest.mark.parametrize("seed", range(8))
def test_neo_stream_is_left_alone_where_the_stream_itself_shows_few_classes(seed):
    """Sorted by class under a shift: the plain model sees more classes than there are."""
    random = np.random.default_rng(seed)
    labels = np.repeat(np.arange(CLASSES), 40)
    data = rows(labels, seed=seed, shift=torch.from_numpy(random.normal(size=CLASSES) * 2.5).float())
    calls = []
    feed(neotta.adapt(network(), on_harm=lambda stream, reason: calls.append(reason)), data)
    assert not calls


@pytest.mark.parametrize("action", ["warn", "restore"])
def test_a_state_from_elsewhere_is_caught(action):
    model, mixed = neotta.adapt(network(), on_harm=action), rows(np.resize(MIXED, 4000))
    strange = torch.zeros(CLASSES)
    strange[0] = -60.0  # as if the classes but the first were far too frequent
    feed(model, mixed + strange)
    stay = mixed[:192]
    said = "on_harm='restore' would take it back" if action == "warn" else "went back to plain answers"
    with pytest.warns(RuntimeWarning, match=f"collapsed to .*{said}"):
        answers = feed(model, stay)
    recovered = (answers[-64:].numpy() == np.resize(MIXED, 4000)[128:192]).mean()
    assert (recovered > 0.9) == (action == "restore")


def test_a_row_that_is_not_finite_is_warned_of_once():
    model = neotta.adapt(network(), "neo", on_harm="warn")
    data = rows(MIXED[:16])
    data[3] = math.nan
    with pytest.warns(RuntimeWarning) as caught:
        feed(model, data)
    assert len(caught) == 1


def test_answers_that_collapse_are_harm():
    recent = RecentAnswers()
    plain = np.arange(WINDOW) % CLASSES
    recent.add(np.stack([plain, np.zeros_like(plain), np.zeros_like(plain)], 1), np.ones(WINDOW))
    assert "collapsed to 1.0 classes where the plain model sees 10.0" in recent.evidence().harm
    recent.add(np.stack([plain, plain, plain], 1), np.ones(WINDOW))
    assert recent.evidence().harm == ""


@pytest.mark.parametrize(("changed", "harm"), [(0.7, False), (0.9, True)])
def test_of_neo_stream_fewer_classes_are_harm_only_where_nearly_all_answers_change(changed, harm):
    recent = RecentAnswers(careful=True)
    plain = 1 + np.arange(WINDOW) % (CLASSES - 1)
    adapted = np.where(np.arange(WINDOW) < changed * WINDOW, 0, plain)
    adapted = np.where(adapted > 0, 1, adapted) if harm else adapted
    recent.add(np.stack([plain, adapted, adapted], 1), np.ones(WINDOW))
    assert bool(recent.evidence().harm) == harm
