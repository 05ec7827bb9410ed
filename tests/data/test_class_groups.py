"""Data whose classes are categories of several classes of a model: `class-groups.json`."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image

import neotta
from neotta.data import open_data
from neotta.data.class_groups import ClassGroups
from neotta.data.handwritten import digits
from neotta.errors import DataError

PARITY = {"odd": [1, 3, 5, 7, 9], "even": [0, "2", 4, 6, 8]}


def pictures(root, groups, count=60):
    data = digits("all")
    for number in range(count):
        kind = "even" if data.labels[number] % 2 == 0 else "odd"
        (root / kind).mkdir(parents=True, exist_ok=True)
        Image.fromarray(data.read(number)).save(root / kind / f"{number:03}.png")
    (root / "class-groups.json").write_text(json.dumps(groups))
    return root


def by_hand(probabilities):
    """The category with the larger mean probability of its classes: 0 is odd."""
    means = np.stack([probabilities[:, 1::2].mean(1), probabilities[:, ::2].mean(1)], 1)
    return means / means.sum(1, keepdims=True)


def test_a_category_has_the_mean_probability_of_its_classes():
    logits = torch.randn(50, 7, dtype=torch.float64) * 4
    groups = ClassGroups.of({"few": [3], "many": ["a", 1, 6]}, ["a", "b", "c", "d", "e", "f", "g"], 7)
    chance = logits.softmax(1)
    means = torch.stack([chance[:, 3], chance[:, [0, 1, 6]].mean(1)], 1)
    torch.testing.assert_close(groups.scores(logits).softmax(1), means / means.sum(1, keepdim=True))
    assert groups.scores(logits.half()).dtype is torch.float32
    far = groups.scores(torch.tensor([[0.0, -900, 0, -950, 0, 0, -900]]) - torch.tensor([[900.0, 0, 0, 0, 0, 0, 0]]))
    assert far.isfinite().all()


def test_labels_count_the_categories_of_the_file_also_beside_the_folder(tmp_path):
    root = pictures(tmp_path / "photos", PARITY)
    source = open_data(root)
    assert source.classes == ("odd", "even")
    np.testing.assert_array_equal(source.dataset().labels, sorted(1 - digits("all").labels[:60] % 2))
    domains = open_data(f"domain-folders={tmp_path}")
    assert (domains.classes, domains.class_groups) == (("even", "odd"), None)
    (tmp_path / "class-groups.json").write_text(json.dumps(PARITY))
    assert open_data(f"domain-folders={tmp_path}").classes == ("odd", "even")
    assert open_data(f"images={root / 'odd'}").class_groups == PARITY


def test_runs_score_the_categories_after_the_method_has_adapted(tmp_path):
    root = pictures(tmp_path, PARITY)
    loaded, data = neotta.load_model("mnist"), open_data(root).dataset()
    images = loaded.preprocess.batch(map(data.read, range(len(data))))
    results = neotta.evaluate(loaded, root, methods=["none", "neo"], seeds=[3], batch_sizes=60, progress=False)
    for record, method in zip(results.records, ("none", "neo"), strict=True):
        chance = by_hand(neotta.create(method, loaded.model)(images).softmax(1).numpy())
        assert record.metrics["top1"] == pytest.approx(100 * np.mean(chance.argmax(1) == data.labels))
        assert record.metrics["nll"] == pytest.approx(-np.log(chance[range(60), data.labels]).mean(), rel=1e-4)
        assert record.classes == 2
    (root / "class-groups.json").write_text(json.dumps({**PARITY, "odd": [1, 3, 5, 7]}))
    again = neotta.evaluate(loaded, root, methods=["none", "neo"], seeds=[3], batch_sizes=60, progress=False)
    assert {record.key for record in again.records}.isdisjoint(record.key for record in results.records)


def test_judge_asks_for_categories(tmp_path):
    root = pictures(tmp_path, PARITY)
    loaded = neotta.load_model("mnist")
    judged = neotta.judge(loaded, root, "neo")
    assert {name for row in judged.answers.values() for name in row} <= {"odd", "even"}
    assert judged.finished  # the folders say what is right
    assert judged.known == {name: name.partition("/")[0] for name in judged.known}


@pytest.mark.parametrize(
    ("content", "fact"),
    [
        ("{", "cannot be read"),
        ("[[1], [2]]", "no classes for each category"),
        ('{"odd": [], "even": [2]}', "no classes for each category"),
        ('{"odd": 1, "even": [2]}', "no classes for each category"),
        ('{"odd": [1, 3], "even": [3]}', "the class 3 twice"),
        ('{"odd": [1]}', "none of the 1 classes: even"),
        ('{"odd": [1], "even": [10]}', "'even' has the class 10"),
        ('{"odd": [1], "even": ["two"]}', "'even' has the class 'two'"),
    ],
)
def test_a_wrong_file_is_named_in_one_sentence(tmp_path, content, fact):
    root = pictures(tmp_path, PARITY, count=6)
    (root / "class-groups.json").write_text(content)
    with pytest.raises(DataError, match=fact):
        neotta.evaluate("mnist", root, methods="none", seeds=1, progress=False)
