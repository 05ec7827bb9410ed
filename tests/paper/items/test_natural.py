"""Shifts that nobody made, answers until a verdict, and one class of many, recomputed by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

import neotta
from neotta.data.handwritten import digits
from neotta.paper.evidence import Evidence
from neotta.paper.item import chosen
from neotta.paper.items import one_class
from neotta.paper.study import Study, Subject


@pytest.fixture(scope="module")
def natural(tmp_path_factory):
    folder = tmp_path_factory.mktemp("natural")
    subject = Subject(model="mnist", data="digits-all", corruptions=[])
    methods = ["none", "neo", "neo-stream"]
    study = Study(subjects=[subject], methods=methods, samples=2000, seeds=[1, 2], cache=str(folder))
    return Evidence(study, folder / "records.jsonl", cache=folder)


def found(evidence, name):
    (item,) = chosen([name])
    evidence.gather([item])
    return item.find(evidence)


def test_natural_shifts_has_a_row_for_each_order_and_batch(natural):
    report = found(natural, "natural-shifts")
    (table,) = report.parts
    assert [name for name, _ in table.grid.rows] == [
        "all, mixed, batches of 16",
        "all, mixed, batches of 64",
        "all, sorted by class, batches of 16",
        "all, sorted by class, batches of 64",
        "all, others, after 898 images, batches of 64",
    ]
    row = next(row for row in table.data if row["method"] == "neo" and row["order"] == "iid")
    assert row["mean"] == pytest.approx(30, abs=1)
    assert "+30" in report.answer


def test_sets_of_several_sizes_are_reported_from_records_alone(tmp_path):
    data = digits("all")
    for place in range(51):
        folder = tmp_path / "photos" / ("many" if place % 3 else "few") / data.classes[data.labels[place]]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(data.read(place)).save(folder / f"{place}.png")
    names = {"model": "mnist", "data": f"domain-folders={tmp_path / 'photos'}", "domains": ["many", "few"]}
    study = Study(subjects=[Subject(**names)], methods=["none", "neo"], seeds=[1, 2])
    measured = found(Evidence(study, tmp_path / "records.jsonl"), "natural-shifts")
    again = Evidence(study, tmp_path / "records.jsonl", only_recorded=True)
    assert found(again, "natural-shifts").parts[0].data == measured.parts[0].data
    assert again.problems == {}
    assert "few, others, after 8 images, batches of 64" in dict(measured.parts[0].grid.rows)


def test_answers_until_a_verdict_are_those_of_a_judgement(natural):
    report = found(natural, "judged")
    by_rule = {row["rule"]: row for row in report.parts[0].data}
    loaded, data = neotta.load_model("mnist"), digits("all")
    images = loaded.preprocess.batch(map(data.read, range(len(data))))
    run = next(record for record in natural._records.read() if record.analysis == "judged")
    assert run.domains == ["all"]
    assert by_rule["neo"]["images"] == len(data) == 1797
    with torch.inference_mode():
        plain = loaded.model(images).argmax(1).numpy()
    gain = 100 * np.mean(plain == data.labels)
    assert by_rule["neo"]["gain"] == pytest.approx(64.5 - gain, abs=1)
    assert 5 < by_rule["neo"]["answers"] <= by_rule["neo"]["most"] <= 60
    assert by_rule["neo"]["share helps"] > 0.5
    assert by_rule["neo"]["wrong"] == by_rule["neo-stream"]["wrong"] == 0


def test_one_class_adapts_on_its_images_on_views_of_them_and_on_others(tmp_path, monkeypatch):
    monkeypatch.setattr(one_class, "CLASSES", 3)
    study = Study(subjects=[Subject(corruptions=["contrast"])], methods=["none"], seeds=[1])
    evidence = Evidence(study, tmp_path / "records.jsonl")
    monkeypatch.setattr(one_class, "SAMPLES", evidence.settings[0].fewest)
    assert "has enough images of each class" in " ".join(found(evidence, "one-class").notes)
    monkeypatch.setattr(one_class, "SAMPLES", 100)
    report = found(evidence, "one-class")
    by_way = {row["adapted_on"]: row for row in report.parts[0].data if row["domain"] == "all"}
    # that of mixed images gains, that of one class erases what is to be seen
    assert by_way["images"]["mean"] < by_way["mixed"]["mean"]
    assert by_way["views"]["low"] < by_way["views"]["mean"] < by_way["views"]["high"]


def test_views_are_parts_of_the_image():
    image = np.arange(40 * 60 * 3, dtype=np.uint32).reshape(40, 60, 3).astype(np.uint8)
    views = one_class._views(image, 2, np.random.default_rng(0))
    assert len(views) == one_class.SAMPLES // 2
    assert all(view.shape == image.shape and view.dtype == np.uint8 for view in views)
    assert len({view.tobytes() for view in views}) == len(views)
