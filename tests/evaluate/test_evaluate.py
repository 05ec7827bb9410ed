"""`neotta.evaluate`: objects of the caller in, results out."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import neotta
from neotta.adapters.none import NoAdapt
from neotta.data import digits
from neotta.data.base import ImageDataset
from neotta.data.corrupted import CorruptedDataset
from neotta.errors import DataError, InputError, NeottaError, OptionError
from neotta.evaluate.records import Records
from neotta.evaluate.results import Results
from neotta.neo.variants import VARIANTS

COUNT = 96


@pytest.fixture(scope="module")
def loaded():
    return neotta.load_model("digits")


@pytest.fixture(scope="module")
def images():
    foggy = CorruptedDataset(digits("test"), "fog", 5, "cifar")
    return np.stack([foggy.read(index) for index in range(COUNT)])


@pytest.fixture(scope="module")
def labels():
    return digits("test").labels[:COUNT]


@pytest.fixture(scope="module")
def ready(loaded, images):
    return loaded.preprocess.batch(images)


def evaluate(model, data, methods=("none", "neo"), **more):
    return neotta.evaluate(model, data, methods, progress=False, **{"seeds": 1, **more})


class Pairs(Dataset):
    """A dataset with no more than a length and items."""

    def __init__(self, inputs, labels):
        self.inputs, self.classes = inputs, labels

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return self.inputs[index], int(self.classes[index])


@pytest.mark.parametrize("first", ["import neotta", "import neotta.evaluate.records, neotta"])
def test_it_is_a_call_whatever_was_imported_before(first):
    code = (
        "; from neotta.evaluate.plan import Plan; print(callable(neotta.evaluate), neotta.evaluate.plan.Plan is Plan)"
    )
    done = subprocess.run([sys.executable, "-c", first + code], capture_output=True, text=True, check=True)
    assert done.stdout == "True True\n"


def test_all_ways_to_give_a_model_and_data_measure_the_same(loaded, images, ready, labels):
    several = [
        evaluate(loaded.model, (ready, torch.from_numpy(labels))),
        evaluate(loaded.model, TensorDataset(ready, torch.from_numpy(labels))),
        evaluate(loaded.model, Pairs(ready, labels)),
        evaluate(loaded.model, DataLoader(Pairs(ready, labels), batch_size=10, shuffle=True)),
        evaluate(loaded.model, DataLoader(Pairs(ready, labels), batch_size=10, collate_fn=lambda rows: [
            torch.stack([row[0] for row in rows]), torch.tensor([row[1] for row in rows])
        ])),
        evaluate(loaded.model, (images, labels), preprocess=loaded.preprocess),
        evaluate(loaded, (images, labels)),
        evaluate("digits", (torch.from_numpy(images).permute(0, 3, 1, 2) / 255, labels.tolist())),
    ]  # fmt: skip
    for results in several:
        assert results.frame()["top1"].tolist() == several[0].frame()["top1"].tolist()
        assert [record.answers for record in results.records] == [each.answers for each in several[0].records]


def test_results_are_tables_and_figures_and_can_be_saved(loaded, ready, labels, tmp_path):
    results = evaluate(loaded.model, {"fog": (ready, labels), "clean": (ready, labels)}, seeds=2)
    table = results.compare()
    assert table["domain"].tolist() == ["clean", "clean", "fog", "fog"]
    assert table["verdict"].dropna().isin(["helps", "hurts", "can't tell"]).all()
    assert "<table" in results._repr_html_()
    assert "NaN" not in results._repr_html_() + repr(results), "the plain model has no verdict"
    assert "neo" in repr(results)
    assert len(results.plot().axes[0].containers) == 1
    results.save(tmp_path / "r.parquet")
    results.save(tmp_path / "r.jsonl")
    for path in tmp_path.iterdir():
        assert neotta.results(path).compare().equals(table)


def test_with_a_file_it_continues(loaded, ready, labels, tmp_path):
    path, seen = tmp_path / "results.jsonl", []
    first = evaluate(loaded.model, (ready, labels), path=path, on_record=seen.append)
    assert [record.key for record in seen] == [record.key for record in Records(path).read()]
    again = evaluate(loaded.model, (ready, labels), ["none", "neo", "lame"], path=path, on_record=seen.append)
    assert [record.method for record in seen] == ["none", "neo", "lame"]
    assert again.records[:2] == first.records


def test_methods_are_names_classes_or_options(loaded, ready, labels):
    class Plain(NoAdapt):
        name = "plain-again"
        title = "Plain, again"

    methods = ["neo-continual:alpha=0.1|0.2", Plain, VARIANTS["neo-continual"](alpha=0.5), {"method": "lame"}]
    results = evaluate(loaded.model, (ready, labels), methods, samples=32)
    assert "Plain, again" in set(results.compare("lame")["method"])
    frame = results.frame()
    assert frame["name"].tolist() == ["neo-continual", "neo-continual", "plain-again", "neo-continual", "lame"]
    assert {f"neo-continual alpha={alpha}" for alpha in ("0.1", "0.2", "0.5")} <= set(frame["method"])
    with pytest.raises(OptionError, match="MeanRule are options of neo and neo-mse"):
        evaluate(loaded.model, (ready, labels), [VARIANTS["neo"]()])


def test_methods_that_change_images_need_the_normalisation(loaded, ready, images, labels):
    results = evaluate(loaded.model, (ready, labels), ["none", "cotta"], samples=8)
    (left_out,) = [record for record in results.records if record.left_out]
    assert "needs the model's normalisation" in left_out.left_out
    assert evaluate(loaded, (images[:8], labels[:8]), ["cotta"]).frame()["method"].tolist() == ["cotta"]


def test_options_are_tuned_on_a_domain_of_the_callers_own(loaded, ready, labels):
    data = {"here": (ready, labels), "there": (ready.flip(0), labels[::-1].copy())}
    (record,) = evaluate(loaded.model, data, ["neo-continual:alpha=0.1|0.5"], samples=32, tune="there").records
    assert (record.domain, record.tuned.on) == ("here", ["there"])


def test_orders_and_groups(loaded, ready, labels):
    clips = np.arange(COUNT) // 8
    results = evaluate(loaded.model, (ready, labels), order="hold-out", samples=32, groups=clips)
    (answers, _) = (record.answers for record in results.records)
    assert sorted(np.unique(answers["groups"])) == list(range(12))
    assert len(answers["groups"]) == len(answers["right"]) == COUNT - 32
    assert len(set(zip(answers["groups"], clips[answers["images"]], strict=True))) == 12
    plain = evaluate(loaded.model, (ready, labels), order="hold-out", samples=32)
    assert "groups" not in plain.records[0].answers
    assert plain.records[0].key != results.records[0].key, "the one cannot stand for the other"
    (record,) = evaluate(loaded.model, (ready, labels), ["none"], order="correlated:delta=0.1").records
    assert record.order_options == {"delta": 0.1}


def made_up(count, seed=0):
    random = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, 4, 4, generator=random), torch.randint(0, 10, (count,), generator=random)


@pytest.fixture
def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 10)).eval()


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_domains_of_unequal_size_show_512_samples_or_all_of_theirs(small, names):
    data = {"a": made_up(600), "b": made_up(100, seed=1)}
    data = {name: data[name] for name in names}
    alone = evaluate(small, data).records
    assert {(record.domain, record.count, record.status) for record in alone} == {("a", 512, "ok"), ("b", 100, "ok")}
    assert [record.sizes for record in alone if record.method == "none"] == [
        {name: len(data[name][1])} for name in names
    ]
    (none, _) = evaluate(small, data, order="continual").records
    assert (none.count, len(none.answers["right"])) == (612, 612)
    assert set(none.per_domain) == {"a", "b"}
    with pytest.raises(DataError, match="only 100"):
        evaluate(small, data, samples=512, order="continual")


def test_one_image_is_measured(small):
    (none, neo) = evaluate(small, made_up(1)).records
    assert (none.count, neo.count, none.metrics["top1"]) == (1, 1, neo.metrics["top1"])


class Named(ImageDataset):
    def __init__(self, domain, classes):
        self.domain, self.classes, self.ids, self.labels = domain, classes, ["0", "1"], np.array([0, 1])

    def read(self, index):
        return np.full((8, 8, 3), 100 * index, np.uint8)


@pytest.mark.parametrize(
    ("data", "groups", "named"),
    [
        ({"a": made_up(4), "b": made_up(0)}, None, "'b' has no samples"),
        ({"a": Named("a", ("cat", "dog")), "b": Named("b", ("dog", "cat"))}, None, "'a' and 'b'"),
        ({"a": made_up(4), "b": made_up(4)}, {"a": list("wwxy"), "b": list("xyzz")}, "'x'"),
        ({"a": made_up(4), "b": made_up(4)}, {"a": list("wwxy")}, "'b'"),
    ],
)
def test_domains_that_do_not_go_together_are_one_clear_error(small, data, groups, named):
    ready = {"preprocess": neotta.Preprocess((4, 4))} if isinstance(data["a"], Named) else {}
    with pytest.raises(DataError, match=named):
        evaluate(small, data, groups=groups, **ready)


def test_a_notebook_says_why_a_domain_has_no_value(small):
    inputs, classes = made_up(4)
    other = evaluate(small, {"a": (inputs, classes), "b": (inputs, [0, 1, 2, 99])})
    assert "none failed on b" in other._repr_html_()
    assert "class 99" in other._repr_html_()
    none = evaluate(small, {"a": (inputs, classes), "b": inputs})
    assert not none.failed
    assert "in b: the records there do not have it" in none._repr_html_()
    assert "do not have it" not in evaluate(small, (inputs, classes))._repr_html_()


def test_data_without_labels_is_reported(loaded, ready):
    results = evaluate(loaded.model, DataLoader(TensorDataset(ready), batch_size=32))
    assert results.unlabelled.table["samples"].tolist() == [COUNT]
    assert "changed predictions" in results._repr_html_()
    assert "changed predictions" in repr(results)
    with pytest.raises(DataError, match="may need labels"):
        results.compare()
    assert Results(results.records)._repr_html_() == "&lt;Results of 2 records&gt;"


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Flatten(), nn.Linear(3 * 4 * 4, 3)

    def forward(self, x):
        return self.head(self.body(x))


INPUTS = torch.zeros(8, 3, 4, 4)
WITH_NAN = INPUTS.index_put((torch.tensor(5),), torch.tensor(torch.nan))


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ((INPUTS, [0] * 7), DataError, "'data' has 8 inputs and 7 labels"),
        ((INPUTS, [0.5] * 8), DataError, "the labels of 'data' are float64"),
        ((INPUTS, [0] * 7 + [3]), DataError, "'data' has a class 3, and the model has 3 classes"),
        ((INPUTS, [-1] + [0] * 7), DataError, "counted from 0"),
        ((WITH_NAN, [0] * 8), InputError, "1 input of 'data' hold NaN or infinite values, the first at 5"),
        (Pairs(WITH_NAN, [0] * 8), DataError, "input 5 of 'data' holds NaN"),
        ((INPUTS.byte(), [0] * 8), InputError, "pass preprocess=neotta.Preprocess"),
        ("digits", OptionError, "the data are images: pass preprocess"),
        ({}, DataError, "the mapping is empty"),
        (3, DataError, "'data' is a int: expected"),
        (INPUTS[:0], DataError, "'data' has no samples"),
    ],
)
def test_bad_data_is_one_clear_error(data, error, message):
    with pytest.raises(error, match=message) as raised:
        evaluate(Small().eval(), data)
    assert isinstance(raised.value, NeottaError)


def test_bad_models_and_groups_are_one_clear_error(loaded, images, labels):
    with pytest.raises(InputError, match=r"Small is in training mode: call model.eval\(\) first"):
        evaluate(Small(), (INPUTS, [0] * 8))
    with pytest.raises(InputError, match=r"expected a torch\.nn.Module, a neotta.LoadedModel or the name"):
        evaluate(3, (INPUTS, [0] * 8))
    with pytest.raises(DataError, match="8 inputs and 3 groups"):
        evaluate(Small().eval(), (INPUTS, [0] * 8), groups=[1, 2, 3])
    with pytest.raises(InputError, match=r"runs from .* if it is preprocessed already, pass the model itself"):
        evaluate(loaded, (loaded.preprocess.batch(images), labels))
    with pytest.raises(OptionError, match="several processes need the model and the data by name"):
        evaluate(Small().eval(), (INPUTS, [0] * 8), jobs=2)


def test_a_domain_of_which_nothing_is_left_to_score_fails_with_the_reason(small):
    results = evaluate(small, {"a": made_up(600), "b": made_up(100, 1)}, ["none"], order="hold-out", seeds=1)
    assert [record.count for record in results.records if not record.failed] == [88]
    (failed,) = results.failed
    assert failed.domain == "b"
    assert "no sample left to score" in failed.error
