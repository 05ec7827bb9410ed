"""Every part of the key of a run: two runs that may differ in their result never share one."""

from __future__ import annotations

import shutil
import typing
from pathlib import Path

import numpy as np
import pytest
import torch
from support.benches import open_bench

import neotta
from neotta._source_code import Tree, source_hash
from neotta.adapters import registry
from neotta.errors import OptionError
from neotta.evaluate import provenance
from neotta.evaluate.opened_model import OpenedModel
from neotta.evaluate.plan import Plan
from neotta.evaluate.records import Records
from neotta.evaluate.sweep import Watcher, recorded, sweep

PLAN = {"corruptions": ["fog"], "severities": [3], "methods": "neo", "seeds": [1], "samples": [16], "batch_sizes": [8]}
MANY = {"corruptions": ["fog", "contrast"], "protocol": "continual", "samples": [17]}
RECURRING, CAMERAS = {**MANY, "order": "recurring"}, {**MANY, "order": "cameras"}
HELD = {"protocol": "hold-out", "held_out_samples": 32}
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
        ({"corruptions": ["clean", "fog"]}, {"corruptions": ["clean", "fog"], "protocol": "cross-domain"}),
    ],
)
def test_what_is_asked_for_is_in_the_key(one, other):
    assert key(**one) != key(**other)


def test_the_domain_adapted_to_is_in_the_key():
    bench = open_bench(Plan.make({**PLAN, "corruptions": ["clean", "fog"], "protocol": "cross-domain"}))
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
    bench.data.kept = [0, 1, 2]
    keys.add(bench.key(run))
    bench.data.kept = [0, 1, 3]
    keys.add(bench.key(run))
    other = OpenedModel("digits")
    with torch.no_grad():
        other.head.weight[0, 0] += 1
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


# ---- the code

MINE = """
from helper import FACTOR
from neotta.adapters import Declaration, EmbeddingAdapter, entropy, register


@register
class Mine(EmbeddingAdapter):
    name, title = "mine-of-keys", "Mine"
    declaration = Declaration(needs="embeddings")

    def _embeddings(self, embeddings, adapt):
        return FACTOR * self.classify(embeddings)

    def _state(self):
        return {}

    def _start(self):
        pass

    def _load(self, state):
        pass
"""


@pytest.fixture
def mine(tmp_path):
    """The file of a method, and the file that it imports."""
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "helper.py").write_text("FACTOR = 1.0\n")
    yield tmp_path / "mine.py", tmp_path / "helper.py"
    registry.METHODS._things.pop("mine-of-keys", None)


@pytest.fixture
def edited(tmp_path, monkeypatch):
    """Lets methods be hashed as if a file of neotta had been edited."""
    package = Path(neotta.__file__).parent

    def edit(name):
        copy = tmp_path / name.replace("/", "-") / "neotta"
        shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__", "*.png", "*.parquet"))
        with (copy / name).open("a") as file:
            file.write("EDITED = 1\n")
        for module, tree in ((registry, "_OWN"), (provenance, "_SCORING")):
            monkeypatch.setattr(module, tree, getattr(module, tree)._replace(root=copy.parent))
        forget()

    def forget():
        registry._code_hash.cache_clear()
        provenance._metrics.cache_clear()

    yield edit
    monkeypatch.undo()
    forget()


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("neo/moments.py", "neo"),
        ("neo/rules.py", "neo"),
        ("neo/memory.py", "neo"),
        ("neo/head.py", "neo"),
        ("neo/norms.py", "neo-bn"),
        ("adapters/neo.py", "neo"),
        ("adapters/base.py", "neo"),
        ("adapters/lame.py", "neo+lame"),
        ("adapters/neo.py", "neo+lame"),
        ("adapters/stack.py", "neo+lame"),
        ("adapters/gradient.py", "tent"),
        ("adapters/_optimizers.py", "sar"),
        ("adapters/augment.py", "cotta"),
        ("adapters/_augmenting.py", "surgeon"),
        ("adapters/_pruned.py", "surgeon"),
        ("adapters/_evolution.py", "foa"),
        ("options.py", "t3a"),
        ("evaluate/metrics.py", "none"),
        ("evaluate/predictions.py", "none"),
    ],
)
def test_an_edit_of_what_a_method_builds_on_changes_its_code(name, method, edited):
    before = provenance.code_of(method)
    edited(name)
    assert provenance.code_of(method) != before


@pytest.mark.parametrize(("name", "method"), [("adapters/tent.py", "neo"), ("adapters/stack.py", "neo")])
def test_an_edit_of_another_method_changes_nothing(name, method, edited):
    before = provenance.code_of(method)
    edited(name)
    assert provenance.code_of(method) == before


def test_code_and_version_are_in_the_key(edited, monkeypatch):
    bench, run = first()
    keys, asked = [bench.key(run)], bench.question(run)
    edited("neo/moments.py")
    keys.append(bench.key(run))
    monkeypatch.setattr(provenance, "__version__", "99")
    keys.append(bench.key(run))
    assert len(set(keys)) == 3
    assert bench.question(run) == asked


def test_the_code_of_a_plug_in_is_its_files_and_what_it_uses_of_neotta(mine, edited):
    file, helper = mine
    method = f"py:{file}:Mine"
    hashes = [registry.code_hash(method)]
    helper.write_text("FACTOR = 2.0\n")
    registry._code_hash.cache_clear()
    hashes.append(registry.code_hash(method))
    file.write_text(f"{MINE}EDITED = 1\n")
    hashes.append(registry.code_hash(method))
    for name in ("adapters/base.py", "adapters/gradient.py"):
        edited(name)
        hashes.append(registry.code_hash(method))
    assert len(set(hashes)) == len(hashes)
    edited("adapters/tent.py")
    assert registry.code_hash(method) == hashes[2], "it does not build on another method"


def test_imports_are_followed_within_the_trees_only(tmp_path):
    files = {
        "pack/__init__.py": "from pack.api import name\n",
        "pack/api.py": "from . import low\nfrom .sub.deep import thing\nimport other\nname = 1\n",
        "pack/low.py": "if TYPE_CHECKING:\n    import pack.typed\nelse:\n    import pack.loaded\n",
        "pack/loaded.py": "def late():\n    from pack.lazy import x\n",
        "pack/lazy.py": "x = 1\n",
        "pack/typed.py": "",
        "pack/sub/__init__.py": "",
        "pack/sub/deep.py": "thing = 2\n",
        "other.py": "",
        "start.py": "from pack import name\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    trees = [Tree(tmp_path, ("start", "pack"))]
    for name, text in files.items():
        before = source_hash(["start"], trees)
        (tmp_path / name).write_text(f"{text}EDITED = 1\n")
        ignored = name in ("other.py", "pack/typed.py") or name.endswith("__init__.py")
        assert (source_hash(["start"], trees) == before) == ignored, name


def test_comments_and_docstrings_are_not_code(tmp_path):
    texts = [
        "def f(x):\n    return x + 1\n",
        '"""Doc."""\n\n\ndef f(x):  # why\n    """Add\n\n    one."""\n    return x + 1\n\n\n"""What it is."""\n',
        "def f(x):\n    return x + 2\n",
        'def f(x): "a docstring"; return x + 1\n',
        'def f(x):\n    return "# no comment"\n',
        'def f(x):\n    return "# not a comment"\n',
    ]
    hashes = []
    for text in texts:
        (tmp_path / "one.py").write_text(text)
        hashes.append(source_hash(["one"], [Tree(tmp_path, ("one",))]))
    assert hashes[0] == hashes[1]
    assert len(set(hashes)) == 5


# ---- older records


class Lines(Watcher):
    def __init__(self):
        self.lines = []

    def outdated(self, line):
        self.lines.append(line)


def test_records_of_other_code_are_named_kept_and_not_used(tmp_path, edited):
    plan, path, watcher = Plan.make(PLAN), tmp_path / "results.jsonl", Lines()
    bench = open_bench(plan)
    sweep(bench, plan, path, progress=watcher)
    assert sweep(bench, plan, path, progress=watcher).skipped == 1
    assert watcher.lines == []
    (before,) = Records(path).read()
    edited("neo/moments.py")
    assert recorded(bench, plan, path) == ([bench.key(bench.runs()[0]), before["key"]], 0), "it answers where asked to"
    assert sweep(bench, plan, path, progress=watcher).done == 1
    (line,) = watcher.lines
    assert line.startswith("older: 1 of 1 run, made by other code")
    assert line.endswith(f"(neotta {neotta.__version__}; neo): they are measured again")
    found = Records(path).read()
    assert [record["key"] for record in found] == [before["key"], bench.key(bench.runs()[0])]
    assert len({record["question"] for record in found}) == 1
    assert provenance.older(found) == found[:1]
    assert provenance.current(found) == found[1:]
    assert sweep(bench, plan, path, progress=watcher).skipped == 1
    assert len(watcher.lines) == 1


def test_records_from_before_code_was_recorded_are_older(tmp_path):
    plan, path = Plan.make(PLAN), tmp_path / "results.jsonl"
    bench = open_bench(plan)
    record = bench.record(bench.runs()[0])
    old = {name: value for name, value in record.items() if name not in ("code", "question")}
    Records(path).append({**old, "key": record["question"]})
    assert provenance.older(Records(path).read())
    assert recorded(bench, plan, path) == ([record["key"], record["question"]], 0)
    assert provenance.current([*Records(path).read(), record]) == [record]
    gone = {**record, "method": "no-such-method"}
    assert provenance.older([gone, {"key": "a", "analysis": "b"}]) == [gone]
