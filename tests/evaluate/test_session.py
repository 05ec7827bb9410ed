from __future__ import annotations

import copy
import warnings

import numpy as np
import PIL.Image
import pytest
import torch
from sklearn.metrics import accuracy_score, log_loss, top_k_accuracy_score
from support.benches import PlanBench, open_bench, same_predictions

import neotta
from neotta.data import digits
from neotta.errors import DataError, OptionError
from neotta.evaluate.answers import PredictionStats
from neotta.evaluate.plan import MethodPlan, Plan

EVERY = {"corruptions": ["clean", "contrast", "fog"], "severities": [3], "seeds": 1, "samples": [96]}


def bench(tmp_path=None, **plan):
    return open_bench(Plan.make({**EVERY, **plan}), cache=tmp_path)


def by_method(records):
    return {(record.method, record.domain): record for record in records}


def test_a_run_agrees_with_doing_it_by_hand():
    session = bench(methods="none,neo")
    records = by_method(session.record(run) for run in session.runs())
    assert all(record.status == "ok" for record in records.values())
    (stream,) = session.orders(session.runs()[2])
    dataset = session.data.dataset("contrast/3")
    images = torch.stack([session.loaded.preprocess(dataset.read(int(index))) for index in stream.index])
    labels = torch.from_numpy(dataset.labels[stream.index])
    model = copy.deepcopy(session.model)
    for method, model_ in (("none", model), ("neo", neotta.adapt(copy.deepcopy(model), "neo"))):
        with torch.no_grad():
            logits = torch.cat([model_(images[:64]), model_(images[64:])])
        mine = records[method, "contrast/3"].metrics
        assert mine["top1"] == pytest.approx(100 * accuracy_score(labels, logits.argmax(1)))
        assert mine["top5"] == pytest.approx(100 * top_k_accuracy_score(labels, logits, k=5, labels=range(10)))
        assert mine["nll"] == pytest.approx(log_loss(labels, logits.double().softmax(1), labels=range(10)), abs=1e-4)
    assert records["none", "clean"].metrics["top1"] > 95


class WithoutCache(PlanBench):
    def uses_cache(self, run):
        return False


def test_cached_and_direct_runs_agree():
    plan = Plan.make({**EVERY, "methods": "none,neo,neo-continual,t3a,lame,neo+lame", "batch_sizes": [10]})
    cached, direct = open_bench(plan), open_bench(plan, kind=WithoutCache)
    for run in cached.runs():
        same_predictions(cached.predict(run), direct.predict(run), rtol=1e-5, atol=1e-5)


def test_the_encoder_sees_each_image_once(tmp_path):
    session = bench(
        tmp_path, methods="none,neo,t3a,lame", seeds=2, samples=[8, 32, 64], batch_sizes=[1, 16], corruptions=["fog"]
    )
    runs = session.runs()
    wanted = sum(len(indices) for indices in session.wanted(runs).values())
    assert wanted <= 128
    session.fill(runs)
    for run in runs:
        assert session.record(run).status == "ok"
    assert session.embeddings.encoded == wanted
    again = bench(tmp_path, methods="neo", seeds=2, samples=[64], corruptions=["fog"])
    for run in again.runs():
        again.record(run)
    assert again.embeddings.encoded == 0


def test_a_damaged_cache_is_computed_again(tmp_path):
    first = bench(tmp_path, methods="neo", corruptions=["fog"])
    expected = first.record(first.runs()[0]).metrics
    (file,) = tmp_path.glob("*/*.safetensors")
    content = file.read_bytes()
    file.write_bytes(content[:-5] + bytes([content[-5] ^ 3]) + content[-4:])
    second = bench(tmp_path, methods="neo", corruptions=["fog"])
    with pytest.warns(RuntimeWarning, match="damaged"):
        assert second.record(second.runs()[0]).metrics == expected
    assert second.embeddings.encoded == 96


def test_images_that_changed_are_encoded_again(tmp_path):
    from PIL import Image

    source = digits("test")
    for index in range(24):
        folder = tmp_path / "data" / str(source.labels[index])
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(source.read(index)).save(folder / f"{index}.png")
    plan = Plan.make({"data": str(tmp_path / "data"), "methods": "neo", "seeds": 1, "samples": [-1]})
    open_bench(plan, cache=tmp_path / "cache").record(open_bench(plan).runs()[0])
    first = open_bench(plan, cache=tmp_path / "cache")
    first.record(first.runs()[0])
    assert first.embeddings.encoded == 0
    Image.fromarray(255 - source.read(0)).save(tmp_path / "data" / str(source.labels[0]) / "0.png")
    second = open_bench(plan, cache=tmp_path / "cache")
    with pytest.warns(RuntimeWarning, match=r"1 images of .* changed"):
        second.record(second.runs()[0])
    assert second.embeddings.encoded == 1


def test_hold_out_scores_the_rest_with_a_frozen_state():
    session = bench(methods="neo", order="hold-out", samples=[50], corruptions=["contrast"])
    (run,) = session.runs()
    adapt, scored = session.orders(run)
    dataset = session.data.dataset("contrast/3")
    assert (len(adapt), len(scored)) == (50, len(dataset) - 50)
    assert not set(adapt.ids) & set(scored.ids)
    outputs = session.predict(run)
    assert len(outputs.ids) == len(scored)
    embeddings, _ = session.embeddings.get(dataset, adapt.index)
    rest, _ = session.embeddings.get(dataset, scored.index)
    with torch.no_grad():
        expected = PredictionStats.of(session.head(rest - embeddings.mean(0)), outputs.stats.labels)
    for mine, wanted in zip(outputs.stats, expected, strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=1e-4)


def test_few_classes_adapts_to_them_and_scores_the_rest():
    given = {"order": "few-classes", "order_options": {"classes": 2}, "samples": [10]}
    session = bench(corruptions=["fog"], methods="neo", **given)
    (run,) = session.runs()
    adapt, scored = session.orders(run)
    dataset = session.data.dataset("fog/3")
    assert sorted(np.unique(dataset.labels[adapt.index], return_counts=True)[1]) == [5, 5]
    assert sorted([*adapt.index, *scored.index]) == list(range(len(dataset)))
    (fewer,) = bench(corruptions=["fog"], methods="neo", held_out_samples=7, **given).runs()
    assert list(session.orders(fewer)[1].index) == list(scored.index[:7])


def test_a_continual_stream_has_the_kind_that_was_asked_for():
    kinds = {"iid": {}, "correlated": {"delta": 0.01, "shuffle": False}, "imbalanced": {"ratio": 50.0}}
    orders = {}
    for kind, options in kinds.items():
        session = bench(methods="neo", order="continual", order_options=options, samples=[-1])
        (stream,) = session.orders(session.runs()[0])
        there = stream.index[stream.domain == stream.domains.index("fog/3")]
        orders[kind] = session.data.dataset("fog/3").labels[there]
    turns = {kind: np.count_nonzero(np.diff(order)) / len(order) for kind, order in orders.items()}
    assert turns["iid"] > 0.8 > 0.5 > turns["correlated"]
    assert np.bincount(orders["imbalanced"]).max() > 20 * np.bincount(orders["imbalanced"], minlength=10).min()


def test_continual_runs_do_not_reset():
    session = bench(methods="neo-continual", order="continual", samples=[40])
    (run,) = session.runs()
    record = session.record(run)
    assert record.count == 120
    assert set(record.per_domain) == {"clean", "contrast/3", "fog/3"}
    weights = [metric["top1"] for metric in record.per_domain.values()]
    assert record.metrics["top1"] == pytest.approx(np.mean(weights))


def test_cross_domain_uses_the_state_of_the_other():
    session = bench(methods="neo", order="cross-domain", samples=[60], corruptions=["contrast", "fog"])
    runs = session.runs()
    assert [(run.source_domain, run.domain) for run in runs] == [
        ("contrast/3", "contrast/3"), ("contrast/3", "fog/3"), ("fog/3", "contrast/3"), ("fog/3", "fog/3"),
    ]  # fmt: skip
    adapt, scored = session.orders(runs[1])
    centroid = session.embeddings.get(session.data.dataset("contrast/3"), adapt.index)[0].mean(0)
    there = session.embeddings.get(session.data.dataset("fog/3"), scored.index)[0]
    with torch.no_grad():
        logits = session.head(there - centroid)
    found = session.predict(runs[1]).stats
    for mine, wanted in zip(found, PredictionStats.of(logits, found.labels), strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=1e-4)


def test_the_key_is_what_the_result_depends_on():
    session = bench(methods="neo,neo-continual:alpha=0.1|0.2,tent", seeds=2, batch_sizes=[8, 64], samples=[16, 32])
    runs = session.runs()
    keys = {session.key(run) for run in runs}
    assert len(keys) == len(runs)
    assert {bench(methods="neo", seeds=2, batch_sizes=[8, 64], samples=[16, 32]).key(run) for run in runs[:4]} <= keys
    spelled = bench(methods="neo:weighting=sample", seeds=2, samples=[16], batch_sizes=[8])
    assert spelled.key(spelled.runs()[0]) in keys


def test_other_data_under_the_same_names_has_other_keys(tmp_path):
    from PIL import Image

    keys = set()
    for version in range(2):
        folder = tmp_path / str(version) / "images"
        folder.mkdir(parents=True)
        for index in range(4):
            Image.fromarray(digits("test").read(index + 10 * version)).save(folder / f"{index}.png")
        session = open_bench(Plan.make({"data": str(folder), "methods": "neo", "seeds": 1, "samples": [-1]}))
        keys.add(session.key(session.runs()[0]))
    for preset in ("cifar", "tiny"):
        session = bench(corruption_preset=preset, methods="neo", corruptions=["fog"])
        keys.add(session.key(session.runs()[0]))
    assert len(keys) == 4


def test_images_are_sized_as_the_published_protocol_does(tmp_path):
    from PIL import Image

    (tmp_path / "large").mkdir()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (300, 400, 3), dtype=np.uint8)).save(
        tmp_path / "large/a.png"
    )
    plan = {"data": str(tmp_path / "large"), "methods": "none", "model": "timm:vit_tiny_patch16_224"}
    options = {"pretrained": False, "depth": 1, "num_classes": 3}
    plain = open_bench(Plan.make({**plan, "model_options": options}))
    assert plain.data.preprocess.resize is not None
    fog = open_bench(Plan.make({**plan, "model_options": options, "corruptions": ["clean", "fog"]}))
    assert fog.data.dataset("clean").read(0).shape == fog.data.dataset("fog/5").read(0).shape == (224, 224, 3)
    assert fog.data.preprocess.resize is None
    assert fog.loaded.preprocess.resize is not None


def test_methods_that_augment_are_told_the_normalisation():
    values = {"mean": [0.4, 0.5, 0.6], "std": [0.2, 0.3, 0.4]}
    methods = ["surgeon", {"method": "cotta", "mean": 0.1}]
    session = bench(methods=methods, corruptions=["fog"], model_options={"preprocess": values})
    surgeon, cotta = session.runs()
    told = session.adapter(surgeon).options
    assert (told.mean, told.std) == ((0.4, 0.5, 0.6), (0.2, 0.3, 0.4))
    assert {"mean", "std"}.isdisjoint(session.record(surgeon).options)
    told = session.adapter(cotta).options
    assert (told.mean, told.std) == (0.1, (0.2, 0.3, 0.4))


VIT = {
    "pretrained": False,
    "depth": 2,
    "embed_dim": 48,
    "num_heads": 3,
    "num_classes": 10,
    "img_size": 32,
    "patch_size": 8,
}


@pytest.mark.parametrize("method", ["cotta:anchor_threshold=1,num_augmentations=2", "surgeon", "foa"])
def test_the_seed_of_a_run_reaches_the_method(method):
    small = {"methods": method, "corruptions": ["fog"], "samples": [16], "batch_sizes": [8], "seeds": [3, 4]}
    session = bench(model="timm:vit_tiny_patch16_224", model_options=VIT, **small)
    adapters = []
    for run in session.runs():
        assert session.adapter(run) is session.adapter(run)
        assert session.adapter(run).options.seed == run.seed
        adapters.append(session.adapter(run))
    images = torch.rand(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    answers = [[adapter(images) for _ in range(3)][-1] for adapter in adapters]
    assert not torch.equal(*answers)
    record = session.record(session.runs()[0])
    assert record.status == "ok", record
    assert "seed" not in record.options
    given = "{}{}seed=5".format(method, "," if ":" in method else ":")
    fixed = bench(model="timm:vit_tiny_patch16_224", model_options=VIT, **{**small, "methods": given})
    assert [fixed.adapter(run).options.seed for run in fixed.runs()] == [5, 5]


def test_the_data_chooses_the_preset(tmp_path):
    from support.data_makers import cifar10_c

    cifar = f"cifar10-c={cifar10_c(tmp_path / 'cifar', ['fog'])}"
    np.savez(tmp_path / "test.npz", images=np.zeros((4, 32, 32, 3), np.uint8), labels=np.arange(4))
    methods = ["cotta", "cotta@original", "cotta@original-cifar10", {"method": "cotta", "lr": 0.5}, "tent"]
    plan = {"model": "timm:vit_tiny_patch16_224", "model_options": VIT, "methods": methods, "seeds": 1, "samples": [4]}
    for data in (cifar, f"cifar-10={tmp_path / 'test.npz'}"):
        session = open_bench(Plan.make({**plan, "data": data, "domains": [] if data != cifar else ["fog/5"]}))
        runs = session.runs()
        wanted = ["paper-cifar10", "original-cifar10", "original-cifar10", "paper-cifar10", "paper"]
        assert [run.preset for run in runs] == wanted
        told = session.adapter(runs[0]).options
        assert (told.optimizer, told.lr) == ("adam", 1e-3)
        assert session.adapter(runs[3]).options.lr == 0.5
    record = session.record(runs[0])
    assert (record.preset, record.options["optimizer"]) == ("paper-cifar10", "adam")
    assert record.preprocess == session.data.preprocess.to_dict()
    assert bench(methods="cotta", corruptions=["fog"]).runs()[0].preset == "paper"


def test_the_time_of_cached_methods_says_that_the_encoder_is_not_in_it():
    session = bench(methods="neo,tent", corruptions=["fog"], samples=[16])
    cached, direct = (session.record(run) for run in session.runs())
    assert cached.seconds_without_encoder > 0
    assert direct.seconds > 0
    assert (cached.seconds, direct.seconds_without_encoder) == (None, None)


@pytest.mark.parametrize("samples", [0, -2, [64, 0]])
def test_no_samples_are_refused(samples):
    with pytest.raises(OptionError, match="at least 1, or -1 for all"):
        Plan.make({"samples": samples})


def test_a_run_that_fails_says_so_and_the_rest_goes_on():
    session = bench(methods="neo-bn,neo", corruptions=["fog"])
    failed, fine = (session.record(run) for run in session.runs())
    assert failed.status == "failed"
    assert "BatchNorm" in failed.error
    assert fine.status == "ok"


def test_unlabelled_images(tmp_path):
    from PIL import Image

    for index in range(12):
        Image.fromarray(digits("test").read(index)).save(tmp_path / f"{index}.png")
    (tmp_path / "broken.png").write_bytes(b"no image")
    plan = Plan.make({"data": str(tmp_path), "methods": "none,neo,tent", "seeds": 1, "samples": [-1]})
    session = open_bench(plan)
    for run in session.runs():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            record = session.record(run)
        assert any("broken.png" in str(warning.message) for warning in caught) == (run.method != "neo")
        assert (record.count, record.unreadable) == (12, 1)
        assert set(record.metrics) == {"entropy", "confidence"}


def test_plans_are_checked():
    for given, match in (
        ({"modell": "x"}, "no entry 'modell'"),
        ({"samples": "many"}, "samples"),
        ({"seeds": 0}, "at least one seed"),
        ({"protocol": "online"}, "protocol"),
        ({"methods": []}, "methods"),
        ({"methods": "neo:alpha"}, "name=value"),
    ):
        with pytest.raises(OptionError, match=match):
            Plan.make(given)
    with pytest.raises(DataError):
        bench(data="nowhere/at/all")


def test_plans_unfold():
    plan = Plan.make({"methods": ["none", {"method": "tent", "lr": [1e-3, 1e-4], "steps": 2}], "seeds": 5})
    assert plan.seeds == [2020, 1234, 9999, 1, 2]
    runs = plan.runs(["a", "b"])
    assert len(runs) == 2 * 5 * 3
    assert {run.options.get("lr") for run in runs} == {None, 1e-3, 1e-4}
    parsed = MethodPlan.parse("neo-continual@paper:alpha=0.05|0.1,debias=true")
    assert list(parsed.grid()) == [{"alpha": 0.05, "debias": True}, {"alpha": 0.1, "debias": True}]


def test_a_changed_image_is_told_of_once(tmp_path):
    images = tmp_path / "images"
    images.mkdir()
    for number in range(3):
        PIL.Image.new("RGB", (32, 32), (number, 0, 0)).save(images / f"{number}.png")
    plan = Plan.make({"data": str(images), "methods": "none", "samples": [-1], "seeds": 1})

    def encoded():
        session = open_bench(plan, cache=tmp_path / "cache")
        session.fill(session.runs())
        return session.embeddings.encoded

    assert encoded() == 3
    PIL.Image.new("RGB", (32, 32), "white").save(images / "1.png")
    with pytest.warns(RuntimeWarning, match=r"1 images of .* changed since they were encoded"):
        assert encoded() == 1
    assert encoded() == 0  # and nothing is warned of
