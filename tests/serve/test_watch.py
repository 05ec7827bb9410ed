"""Is it helping? Figures, estimates, alarms and going back, without labels."""

from __future__ import annotations

import numpy as np
import pytest
from support.serving import pictures, small_engine

from neotta.deploy.serve.alarms import SHORTEST, WARMUP, Sketch, VideoDetector, correlation
from neotta.deploy.serve.classifier import Batch, Classifier, Job
from neotta.deploy.serve.figures import ERROR, WINDOW, Dropout, Figures, Rows, best, estimates, learn_threshold
from neotta.deploy.serve.opening import clean_threshold
from neotta.deploy.serve.records import Records
from neotta.deploy.serve.settings import Settings
from neotta.deploy.serve.torch_engine import TorchEngine
from neotta.deploy.serve.watch import Watch
from neotta.errors import DataError
from neotta.models.load import load_model


def rows(plain, adapted, own=1.0, agrees=1.0, classes=4):
    """Records of samples with these predictions."""
    figures = Figures(classes)
    logits = [8.0 * np.eye(classes)[each] for each in (plain, adapted)]
    figures.add(Rows.of(*logits, np.full(len(plain), own), np.full(len(plain), agrees)))
    return figures


def test_figures_are_about_the_last_samples():
    figures = rows([0] * WINDOW, [1] * WINDOW)
    assert figures.summary()["disagreement"] == 1.0
    figures.add(Rows.of(np.eye(4)[[0, 1, 2, 3] * 64], np.eye(4)[[0, 1, 2, 3] * 64]))
    summary = figures.summary()
    assert summary["disagreement"] == summary["shift"] == 0.0
    assert summary["top_share"] == 0.25
    assert summary["effective_classes"] == pytest.approx(4.0)
    assert summary["confidence"] == summary["confidence_plain"] == pytest.approx(np.e / (np.e + 3))
    assert figures.seen == 2 * WINDOW
    assert set(Figures(4).summary().values()) == {None}


def test_dropout_agrees_with_a_sure_head_and_not_with_a_torn_one():
    engine = TorchEngine(load_model("digits"))
    dropout = Dropout(engine)
    from neotta.data.handwritten import digits

    dataset = digits("test")
    images = np.stack([engine.preprocess.array(dataset.read(index)) for index in range(0, 600, 20)])
    noise = np.random.default_rng(0).normal(size=images.shape).astype(np.float32)
    clean, noisy = engine.forward(images), engine.forward(noise)
    own, agrees = dropout(clean, clean.logits)
    assert (own == agrees).all()  # nothing is adapted
    assert own.mean() > dropout(noisy, noisy.logits)[0].mean()
    again, _ = Dropout(engine)(clean, clean.logits)
    assert (own == again).all()


def test_estimates_need_samples_and_have_intervals():
    assert estimates(rows([0] * 8, [0] * 8).recent(), 4) == {}
    labels = [0, 1, 2, 3] * 32
    found = estimates(rows(labels, labels, agrees=0.75).recent(), 4, threshold=0.5)
    assert found["agreement"].accuracy == pytest.approx(0.75)
    assert found["threshold"].accuracy == 1.0
    for each in found.values():
        assert 0 <= each.low <= each.accuracy <= each.high <= 1
        assert each.accuracy - each.low >= min(ERROR[each.by][0], each.accuracy)
    assert best(found).by == "threshold"
    assert found["product"].accuracy == pytest.approx(0.75 * found["confidence"].accuracy)
    assert best({name: found[name] for name in ("confidence", "agreement", "product")}).by == "product"
    assert best({"confidence": found["confidence"], "agreement": found["agreement"]}).by == "agreement"
    assert best({}) is None


def test_the_threshold_is_passed_by_as_many_as_are_right():
    sure = np.linspace(0.01, 1.0, 100)
    assert (sure > learn_threshold(sure, np.arange(100) >= 30)).mean() == pytest.approx(0.7, abs=0.02)


def test_a_threshold_from_clean_images(tmp_path):
    engine = TorchEngine(load_model("digits"))
    assert 0 < clean_threshold(engine, "digits", most=100) < 1
    from PIL import Image

    (tmp_path / "pictures").mkdir()
    Image.new("RGB", (32, 32)).save(tmp_path / "pictures" / "a.png")
    with pytest.raises(DataError):
        clean_threshold(engine, str(tmp_path / "pictures"))


# ---- alarms


def video(frames, memory, seed=0, shift=0.0, numbers=12):
    """Frames that depend on those before: an autoregressive process."""
    generator = np.random.default_rng(seed)
    noise = generator.normal(size=(frames, numbers)) * np.sqrt(1 - memory**2)
    found = np.empty_like(noise)
    state = generator.normal(size=numbers)
    for index, each in enumerate(noise):
        state = memory * state + each
        found[index] = state
    return found + shift


def alarms(detector, frames):
    """Number of alarms."""
    return sum(map(detector.observe, np.array_split(frames, 50)))


@pytest.mark.parametrize("memory", [0.0, 0.9, 0.98])
def test_dependent_frames_raise_no_alarm_and_a_change_does(memory):
    detector = VideoDetector()
    assert not alarms(detector, video(30_000, memory))
    assert detector.ready
    assert (detector.length > SHORTEST) == (memory > 0.5)
    assert alarms(detector, video(200 * detector.length, memory, seed=1, shift=3.0))


def test_a_test_for_independent_frames_would_raise_false_alarms():
    from neotta.monitoring.change import ChangeDetector

    detector = ChangeDetector(12, false_alarm_rate=1e-6, warmup=WARMUP, memory=16 * WARMUP)
    assert detector.observe(video(30_000, 0.98)) is not None


def test_correlation_of_blocks():
    assert correlation(np.zeros((10, 3))) == 0.0
    assert correlation(np.linspace(0, 1, 100)[:, None]) > 0.9
    assert abs(correlation(np.random.default_rng(0).normal(size=(2000, 3)))) < 0.1


def test_frames_with_nan_are_left_out():
    detector = VideoDetector()
    assert not detector.observe(np.full((1000, 12), np.nan))
    assert not detector.ready


def test_fog_raises_an_alarm_soon():
    from neotta.data.corruptions import corrupt
    from neotta.data.handwritten import digits

    engine, detector, generator = TorchEngine(load_model("digits")), VideoDetector(), np.random.default_rng(0)
    dataset = digits("test")
    clear = [dataset.read(index) for index in range(0, 600, 10)]
    foggy = [corrupt(image, "fog", 5, seed=index) for index, image in enumerate(clear)]
    sketches = [
        Sketch()(engine.forward(np.stack([engine.preprocess.array(image) for image in images])))
        for images in (clear, foggy)
    ]
    assert not detector.observe(sketches[0][generator.integers(0, 60, 600)])
    assert detector.observe(sketches[1][generator.integers(0, 60, 100)])


def test_the_history_holds_what_was_seen():
    engine, records = small_engine(), Records()
    watch = Watch(engine, records, Settings(images=2))
    classifier = Classifier(engine, watch=watch)
    classifier.run([Job(pictures(8), "a"), Job(pictures(4), "b", adapt=False)])
    watch.tick()
    watch.tick()  # nothing new: no point
    (point,) = records.history("a")
    assert (point["seen"], point["learnt"]) == (8, 8)
    assert records.history("b")[0]["learnt"] == 0
    assert len(records.snapshots("a")) == 1
    assert records.snapshots("b") == []
    assert [image[:2] for image in watch.images("a")] == [b"\xff\xd8"] * 2
    assert set(watch.changed(0)) == {"a", "b"}
    assert watch.changed(watch.version) == []


def test_a_row_that_cannot_be_used_is_left_out():
    engine, records = small_engine(), Records()
    watch = Watch(engine, records, Settings())
    forward = engine.forward(pictures(3).copy())
    forward.logits[1] = np.nan
    from neotta.deploy.serve.classifier import Answer

    watch(Batch([Job(pictures(3), "a")], [Answer(forward.logits, forward.logits, True)], forward))
    assert watch.summary("a")["seen"] == 2
    assert np.isfinite(watch.summary("a")["confidence"])
