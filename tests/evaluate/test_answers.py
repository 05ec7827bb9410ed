from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from support.answered import packed
from support.benches import open_bench

from neotta.errors import DataError
from neotta.evaluate.answers import pack, unpack
from neotta.evaluate.metrics import Reliability
from neotta.evaluate.plan import Plan
from neotta.evaluate.records import Record, Records, as_line

CLASSES = {"order": "few-classes", "order_options": {"classes": 2}}
FOG = {"corruptions": ["fog", "contrast"], "methods": "none,neo", "seeds": [7], "batch_sizes": [16]}
PLANS = {
    "some": {**FOG, "samples": [40]},
    "all": {**FOG, "samples": [-1]},
    "rest": {**FOG, "samples": [8], "order": "hold-out"},
    "few of the rest": {**FOG, "samples": [8], "held_out_samples": 50, "order": "hold-out"},
    "few classes": {**FOG, **CLASSES, "samples": [8]},
    "long tail": {**FOG, "samples": [40], "order": "imbalanced"},
    "correlated": {**FOG, "samples": [40], "order": "correlated"},
    "continual": {**FOG, "samples": [40], "order": "continual"},
    "elsewhere": {**FOG, "samples": [8], "order": "cross-domain", "held_out_samples": 50},
}


@pytest.mark.parametrize("name", PLANS)
def test_a_record_knows_which_images_were_right(name, tmp_path):
    bench = open_bench(Plan.make(PLANS[name]))
    run = bench.runs()[-1]
    record, result = bench.execute(run, {bench.key(run)})
    Records(tmp_path / "records.jsonl").append(record)
    (read,) = Records(tmp_path / "records.jsonl").read()
    found, order = unpack(read), bench.orders(run)[-1]
    assert found.right.tolist() == (result.stats.labels == result.stats.predicted).tolist()
    assert found.known.all()
    assert [found.domains[number] for number in found.domain] == result.domains
    assert (found.image & 0xFFFFFFFF).tolist() == order.index.tolist()
    assert len(set((found.image >> 32).tolist())) == 1  # corrupted in two ways, but the same images
    assert found.batch.tolist() == [n for n, part in enumerate(order.batches()) for _ in range(part.stop - part.start)]
    for domain, measured in read.by_domain.items():
        assert 100 * found.of_domain(domain).right.mean() == pytest.approx(measured["top1"])
    assert ("images" in read.answers) == (name not in ("some", "all", "continual", "elsewhere"))


def test_samples_that_cannot_be_scored_are_not_known():
    bench = open_bench(Plan.make(PLANS["some"]))
    run = bench.runs()[0]
    result, order = bench.predict(run), bench.orders(run)[-1]
    keep = np.arange(40) != 3
    result.ids = [name for name, kept in zip(result.ids, keep, strict=True) if kept]
    result.domains = result.domains[:-1]
    result.stats = result.stats.at(torch.from_numpy(keep))
    result.stats.labels[10] = -1
    record = Record(key="", seed=7, batch_size=16, **pack(result, order, bench.data.dataset))
    found = unpack(record)
    assert np.flatnonzero(~found.known).tolist() == [3, 11]
    assert len(found.of_domain(run.domain).right) == 38
    result.stats.labels[:] = -1
    assert pack(result, order, bench.data.dataset) == {}


def test_other_data_has_other_images():
    one, other = (unpack(Record(key="", answers=packed(np.ones(5), pool=p), seed=1, batch_size=8)) for p in (10, 20))
    assert not one.units & other.units


def test_answers_that_are_missing_or_of_an_earlier_version():
    assert unpack(Record(key="", seed=1, batch_size=8)) is None
    kept = packed(np.ones(50))
    with pytest.raises(DataError, match="answers in the record 'k' cannot be read"):
        unpack(Record(key="k", answers={**kept, "right": "1eNo="}, seed=1, batch_size=8))


def test_how_sure_a_method_was_comes_back_in_its_bin():
    bench = open_bench(Plan.make({**FOG, "methods": "none", "samples": [300], "seeds": [1]}))
    record, result = bench.execute(run := bench.runs()[0], {bench.key(run)})
    found, stats = unpack(Record.model_validate_json(as_line(record.entries()))), result.stats
    for name, term in {"confidence": stats.confidence, "nll": stats.surprise, "brier": stats.brier}.items():
        assert np.abs(found.sure[name] - term.double().numpy()).max() < 1e-3
        assert name == "confidence" or found.sure[name].mean() == pytest.approx(record.metrics[name], abs=1e-3)
    curve = Reliability.of(torch.from_numpy(found.sure["confidence"]), torch.from_numpy(found.right))
    assert curve.samples.tolist() == record.reliability["samples"]
    assert curve.error() == pytest.approx(record.metrics["ece"], abs=1e-4)
    assert len(json.dumps(record.answers)) < 10 * 300


@pytest.mark.parametrize("broken", ["", "eJw=", "AAAA", 5])
def test_sureness_that_cannot_be_read_is_named(broken):
    with pytest.raises(DataError, match="answers in the record 'k'"):
        unpack(Record(key="k", answers={**packed(np.ones(50)), "nll": broken}, seed=1, batch_size=8))
