"""A new scene is no change of domain: streams of real embeddings with bursts, other classes, and fog."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import neotta
from neotta.errors import OptionError

for package in ("PIL", "scipy", "timm"):
    pytest.importorskip(package, reason="the digits need pip install 'neotta[lab]'")

from neotta.data.corruptions import corrupt  # noqa: E402
from neotta.data.handwritten import digits  # noqa: E402
from neotta.monitoring.label_draws import LabelDraws  # noqa: E402


@pytest.fixture(scope="module")
def clean():
    loaded, data = neotta.load_model("digits"), digits()
    return loaded.model, encoded(loaded, [data.read(row) for row in range(len(data))]), data.labels


def encoded(loaded, pictures):
    with torch.inference_mode():
        return neotta.split(loaded.model)[0](torch.stack([loaded.preprocess(picture) for picture in pictures])).numpy()


@pytest.fixture(scope="module")
def fog():
    loaded, data = neotta.load_model("digits"), digits()
    pictures = [corrupt(data.read(row), "fog", 5, "cifar", image_id=str(row)) for row in range(200)]
    return encoded(loaded, pictures)


def watched(model, rows, batch=16, **options):
    """A monitor that has seen embeddings, batch by batch."""
    adapter = neotta.create("neo", model)
    monitor = neotta.Monitor(adapter, false_alarm_rate=1e-4, **options)
    for start in range(0, len(rows), batch):
        adapter.predict_embeddings(torch.from_numpy(rows[start : start + batch]))
    return monitor


def bursts(labels, length, count, seed=0):
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.choice(np.flatnonzero(labels == rng.integers(10)), length) for _ in range(count)])


@pytest.mark.parametrize("length", [5, 20, 200])
def test_bursts_of_a_class_raise_no_alarm(clean, length):
    model, rows, labels = clean
    stream = rows[bursts(labels, length, 3000 // length)]
    assert not watched(model, stream).changes
    if length > 5:
        assert watched(model, stream, unit="sample").changes, "a test of every sample takes each burst for a change"


def test_a_reset_leaves_a_model_alone_in_bursts(clean):
    model, rows, labels = clean
    order = np.concatenate([np.resize(np.flatnonzero(labels == digit), 200) for digit in range(10)])
    right = {}
    for action in ("none", "reset"):
        adapter = neotta.create("neo", model)
        neotta.Monitor(adapter, action=action)
        answers = [
            adapter.predict_embeddings(torch.from_numpy(rows[order[start : start + 16]])).argmax(1)
            for start in range(0, len(order), 16)
        ]
        right[action] = np.mean(torch.cat(answers).numpy() == labels[order])
    assert right["reset"] == right["none"]


def test_other_classes_are_counted_but_no_alarm(clean):
    model, rows, labels = clean
    rng = np.random.default_rng(0)
    halves = [np.flatnonzero(labels < 5), np.flatnonzero(labels >= 5)]
    monitor = watched(model, rows[np.concatenate([rng.choice(halves[part % 2], 500) for part in range(4)])])
    assert not monitor.changes
    assert monitor.label_changes >= 1


def test_fog_is_noticed(clean, fog):
    model, rows, _ = clean
    order = np.random.default_rng(0).permutation(len(rows))[:400]
    monitor = watched(model, np.concatenate([rows[order], fog]))
    assert len(monitor.changes) == 1
    assert 400 < monitor.changes[0].sample < 450


def test_a_shift_that_makes_all_answers_the_same_is_noticed(clean):
    model, rows, _ = clean
    order = np.random.default_rng(0).permutation(len(rows))
    head = neotta.split(model)[1]
    towards = head.weight[3].detach().numpy()
    shift = 40 * towards / np.linalg.norm(towards)
    monitor = watched(model, np.concatenate([rows[order], rows[order] + shift]).astype(np.float32))
    assert monitor.changes


def test_a_wrong_unit_is_refused():
    with pytest.raises(OptionError, match="unit is 'frame': expected 'label' or 'sample'"):
        neotta.Monitor(unit="frame")


def test_a_mistake_ends_no_run_that_has_settled(clean):
    model, rows, _ = clean
    answers = neotta.head(neotta.adapt(model, "neo")).classify(torch.from_numpy(rows)).argmax(1).numpy()
    neotta.restore(model)
    three, five = (np.flatnonzero(answers == label) for label in (3, 5))
    draws = LabelDraws(neotta.head(neotta.adapt(model, "neo")))
    settled = np.concatenate([three[:6], five[:2], three[6:9], five[2:5]])
    assert draws.starts(rows[settled]).tolist() == [0, 13], "the third other answer in a row begins a run"
    assert draws.starts(rows[np.concatenate([three[:1], five[:1], three[:1]])]).tolist() == [0, 1, 2], "short runs end"
    neotta.restore(model)
