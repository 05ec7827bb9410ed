"""Every part of the key of a run: two runs that may differ in their result never share one."""

from __future__ import annotations

import typing

import numpy as np
import pytest
import torch
from support.benches import open_bench

import neotta
from neotta.adapters import registry
from neotta.errors import OptionError
from neotta.evaluate import provenance
from neotta.evaluate.plan import Plan
from neotta.evaluate.records import Record, Records
from neotta.evaluate.sweep import Watcher, sweep
from neotta.models.load import load_model

PLAN = {"corruptions": ["fog"], "severities": [3], "methods": "neo", "seeds": [1], "samples": [16], "batch_sizes": [8]}
MANY = {"corruptions": ["fog", "contrast"], "order": "continual", "samples": [17]}
RECURRING, CAMERAS = {**MANY, "order": "recurring"}, {**MANY, "order": "cameras"}
HELD = {"order": "hold-out", "held_out_samples": 32}
FEW = {**HELD, "order": "few-classes", "order_options": {"classes": 3}}


def first(**plan):
    bench = open_bench(Plan.make({**PLAN, **plan}))
    return bench, bench.runs()[0]


def key(**plan):
    bench, run = first(**plan)
    return bench.key(run)


def test_the_same_run_has_the_same_key():
    assert key() == key()
    assert key(methods="neo:weighting=sample") == key(), "an option that is given its default"
    assert key(methods="cotta@original") == key(methods="cotta:lr=0.01,nesterov=true"), "a preset and its options"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({}, {"methods": "neo-continual"}),
        ({"methods": "neo+lame"}, {"methods": "neo+t3a"}),
        ({}, {"seeds": [2]}),
        ({}, {"samples": [17]}),
        ({}, {"batch_sizes": [9]}),
        ({}, {"severities": [4]}),
        ({}, {"corruptions": ["contrast"]}),
        ({}, {"corruption_preset": "tiny"}),
        ({}, {"order": "correlated"}),
        ({"order": "correlated"}, {"order": "correlated", "order_options": {"delta": 0.2}}),
        ({"samples": [200]}, {"samples": [200], "order": "imbalanced"}),
        ({}, HELD),
        (HELD, {**HELD, "held_out_samples": 33}),
        (HELD, FEW),
        (FEW, {**FEW, "order_options": {"classes": 4}}),
        (MANY, {**MANY, "corruptions": ["contrast", "fog", "snow"]}),
        (MANY, {**MANY, "order_options": {"straddle": True}}),
        (MANY, {**MANY, "order": "mixed"}),
        (MANY, {**MANY, "order": "recurring"}),
        (RECURRING, {**RECURRING, "order_options": {"rounds": 2}}),
        (RECURRING, {**RECURRING, "order_options": {"redraw": True}}),
        (RECURRING, {**RECURRING, "order_options": {"shuffle": False}, "seeds": [3]}),
        (CAMERAS, {**CAMERAS, "order_options": {"per_domain": 2}}),
        (CAMERAS, {**CAMERAS, "order_options": {"in_turn": True}}),
        (CAMERAS, {**CAMERAS, "order_options": {"separate": True}}),
        ({"corruptions": ["clean", "fog"]}, {"corruptions": ["clean", "fog"], "order": "cross-domain"}),
    ],
)
def test_what_is_asked_for_is_in_the_key(one, other):
    assert key(**one) != key(**other)


def test_the_domain_adapted_to_is_in_the_key():
    bench = open_bench(Plan.make({**PLAN, "corruptions": ["clean", "fog"], "order": "cross-domain"}))
    assert len({bench.key(run) for run in bench.runs()}) == 4


@pytest.mark.parametrize(
    "change",
    [
        {"mean": [0.4, 0.5, 0.5]},
        {"std": [0.5, 0.4, 0.5]},
        {"interpolation": "bicubic"},
        {"crop": True},
        {"crop_rounding": "down"},
        {"resize": 32},
        {"resize": [28, 32]},
        {"size": [30, 30], "resize": [30, 30]},
    ],
    ids=str,
)
def test_the_preprocessing_is_in_the_key(change, tmp_path):
    data = made_up(tmp_path / "images.npz", np.zeros((20, 40, 40, 3), np.uint8), np.arange(20) % 10)
    assert key(data=data, corruptions=[], model_options={"preprocess": change}) != key(data=data, corruptions=[])


def made_up(path, images, labels):
    np.savez(path, images=images, labels=labels.astype(np.uint8))
    return str(path)


def test_the_weights_and_the_kept_classes_are_in_the_key():
    keys = {key()}
    bench, run = first()
    bench.data.class_indices = [0, 1, 2]
    keys.add(bench.key(run))
    bench.data.class_indices = [0, 1, 3]
    keys.add(bench.key(run))
    other = load_model("digits")
    with torch.no_grad():
        next(other.model.parameters()).view(-1)[0] += 1
    keys.add(open_bench(Plan.make(PLAN), model=other).key(run))
    assert len(keys) == 4


def test_images_and_labels_are_in_the_key(tmp_path):
    images = np.random.default_rng(0).integers(0, 255, (20, 28, 28, 3), dtype=np.uint8)
    labels, keys = np.arange(20) % 10, set()
    for number, (pictures, classes) in enumerate([(images, labels), (255 - images, labels), (images, labels[::-1])]):
        keys.add(key(data=made_up(tmp_path / f"{number}.npz", pictures, classes), corruptions=[]))
    assert len(keys) == 3


VIT = {"pretrained": False, "depth": 1, "embed_dim": 48, "num_heads": 3, "num_classes": 10, "img_size": 32}


def test_source_images_are_in_the_key(tmp_path):
    rng = np.random.default_rng(0)
    places = [
        made_up(tmp_path / f"{number}.npz", rng.integers(0, 255, (32, side, side, 3), np.uint8), np.arange(32) % 10)
        for number, side in enumerate([28, 28, 40])
    ]
    plan = {"methods": "foa", "model": "timm:vit_tiny_patch16_224", "model_options": VIT}
    assert len({key(**plan, source=place) for place in [None, *places]}) == 4
    assert key(source=places[0]) == key(), "a method without source images does not depend on them"


def _options():
    for method, kind in neotta.methods().items():
        for name in kind.Options.model_fields:
            if name not in ("augmentation", "source"):  # a function and images: these come from Python alone
                yield method, name


def other_value(method, name):
    """A value of an option that is allowed and not that of the paper, which runs have by default."""
    kind = registry.find(method).Options
    default = kind.presets.get("paper", {}).get(name, kind.model_fields[name].default)
    for value in [*words(kind.model_fields[name].annotation), True, False, 0.25, 0.75, 3, 1e-3, (0.5, 0.6)]:
        try:
            made = getattr(kind.make(method, {name: value}), name)
        except OptionError:
            continue
        if made != default:
            return value
    raise AssertionError(f"no other value of {name!r} is known")


def words(annotation):
    """What a type allows to be written literally."""
    if typing.get_origin(annotation) is typing.Literal:
        return list(typing.get_args(annotation))
    return [word for each in typing.get_args(annotation) for word in words(each)]


@pytest.mark.parametrize(("method", "name"), list(_options()))
def test_every_option_of_every_method_is_in_the_key(method, name):
    bench, run = first(methods=method)
    given = run.model_copy(update={"options": {name: other_value(method, name)}})
    assert bench.key(given) != bench.key(run)


def test_the_revision_of_the_method_is_in_the_key(monkeypatch):
    bench, run = first(methods="neo+lame")
    key = bench.key(run)
    monkeypatch.setattr(registry.find("lame"), "revision", 2)
    assert registry.revision_of("neo+lame") == "1+2"
    assert bench.key(run) != key


# ---- older records


class Lines(Watcher):
    def __init__(self):
        self.lines = []

    def noted(self, line):
        self.lines.append(line)


def test_records_of_other_revisions_are_named_kept_and_not_used(tmp_path, monkeypatch):
    plan, path, watcher = Plan.make(PLAN), tmp_path / "results.jsonl", Lines()
    bench = open_bench(plan)
    sweep(bench, plan, Records(path), progress=watcher)
    assert sweep(bench, plan, Records(path), progress=watcher).skipped == 1
    assert watcher.lines == []
    (before,) = Records(path).read()
    monkeypatch.setattr(registry.find("neo"), "revision", 2)
    assert sweep(bench, plan, Records(path), progress=watcher).done == 1
    (line,) = watcher.lines
    assert line.startswith("older: 1 of 1 run, made by another revision")
    assert line.endswith(f"(neotta {neotta.__version__}; neo): they are measured again")
    found = Records(path).read()
    assert [record.key for record in found] == [before.key, bench.key(bench.runs()[0])]
    assert len({record.question for record in found}) == 1
    assert provenance.older(found) == found[:1]
    assert provenance.current(found) == found[1:]
    assert sweep(bench, plan, Records(path), progress=watcher).skipped == 1
    assert len(watcher.lines) == 1


def test_records_without_a_revision_are_older(tmp_path):
    plan, path = Plan.make(PLAN), tmp_path / "results.jsonl"
    bench = open_bench(plan)
    record = bench.record(bench.runs()[0])
    old = {name: value for name, value in record.entries().items() if name not in ("revision", "question")}
    Records(path).append(Record.make({**old, "key": record.question}))
    assert provenance.older(Records(path).read())
    assert provenance.current([*Records(path).read(), record]) == [record]
    gone = record.model_copy(update={"method": "no-such-method"})
    assert provenance.older([gone, Record(key="a", analysis="b")]) == [gone]
