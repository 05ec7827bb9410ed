from __future__ import annotations

import numpy as np
import pytest
import torch
from support.answered import records_of
from support.small_studies import small_study

from neotta.evaluate.plan import Run
from neotta.paper import published
from neotta.paper.evidence import Evidence
from neotta.paper.item import chosen
from neotta.paper.items.corruptions import _cnn_judge
from neotta.paper.measured import Measured
from neotta.paper.study import Subject

(ITEM,) = chosen(["cnn"])
RESNET = Subject(
    model="timm:test_resnet",
    model_options={"pretrained": False, "num_classes": 10},
    corruptions=["fog", "contrast"],
    name="resnet",
)


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """A CNN with random weights, and a transformer."""
    folder = tmp_path_factory.mktemp("cnn")
    study = small_study(
        subjects=[RESNET, Subject(corruptions=["fog"])], methods=["none", "neo", "tent", "lame"], samples=32
    )
    found = Evidence(study, folder / "records.jsonl", cache=folder / "cache")
    found.gather([ITEM])
    return found


@pytest.fixture(scope="module")
def finding(both):
    return ITEM.find(both)


def test_only_models_with_batchnorm_are_compared_and_only_with_methods_of_the_study(both, finding):
    resnet, digits = both.settings
    (plan,) = ITEM.plans(resnet)
    assert [each.method for each in plan.methods] == ["none", "tent", "bn", "neo", "neo-bn"]
    assert ITEM.plans(digits) == []
    assert any("digits is left out" in note and "BatchNorm" in note for note in finding.notes)
    assert all("resnet" in part.title for part in finding.parts)


def test_neo_bn_is_batch_statistics_and_a_running_mean(both, finding):
    """Computed here with torch alone: BatchNorm in training mode, then the mean of all embeddings so far."""
    setting = both.settings[0]
    bench = both.bench(setting)
    model, head = bench.model, bench.head
    cells = {(row["domain"], row["method"]): row["mean"] for row in finding.parts[0].data}
    for domain in setting.domains:
        accuracies = []
        for seed in setting.study.seeds:
            run = Run(method="none", domains=(domain,), seed=seed, samples=32, batch_size=16)
            stream, dataset = bench.orders(run)[0], bench.data.dataset(domain)
            images = torch.stack([bench.data.preprocess(dataset.read(int(index))) for index in stream.index])
            labels = torch.from_numpy(dataset.labels[stream.index])
            accuracies.append(100 * float((neo_bn(model, head, images) == labels).double().mean()))
        assert cells[domain, "neo-bn"] == pytest.approx(np.mean(accuracies))
    assert any(cells[domain, "neo-bn"] != cells[domain, "neo"] for domain in setting.domains)
    assert any(cells[domain, "neo-bn"] != cells[domain, "none"] for domain in setting.domains)


def neo_bn(model, head, images):
    """Predicted classes of two batches, (32,)."""
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    embeddings = []
    hook = head.register_forward_pre_hook(lambda module, inputs: embeddings.append(inputs[0]))
    model.eval()
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.train()
    with torch.no_grad():
        for batch in images.split(16):
            model(batch)
        hook.remove()
        moved = [each - torch.cat(embeddings[: place + 1]).mean(dim=0) for place, each in enumerate(embeddings)]
        predicted = head(torch.cat(moved)).argmax(dim=1)
    model.load_state_dict(before)
    model.eval()
    return predicted


def test_the_control_is_the_statistics_of_the_batch_alone(both, finding):
    cells = {(row["domain"], row["method"]): row["mean"] for row in finding.parts[0].data}
    change = np.mean([cells[domain, "neo-bn"] - cells[domain, "bn"] for domain in both.settings[0].domains])
    assert f"against the statistics of the batch alone (bn), NEO-BN changes it by {change:+.1f} [" in finding.answer


def test_published_gains_stand_beside(finding):
    table = finding.parts[-1]
    printed = published.accuracies()["resnet-50", "imagenet-c"]["average"]
    for row in table.data:
        if row["method"] in ("neo", "neo-bn", "tent", "sar", "cotta"):
            assert row["published"] == pytest.approx(printed[row["method"]].mean - printed["none"].mean)
    measured = {row["method"]: row["measured_mean"] for row in table.data}
    assert measured["sar"] is None
    cells = {(row["domain"], row["method"]): row["mean"] for row in finding.parts[0].data}
    assert measured["neo"] == pytest.approx(cells["average", "neo"] - cells["average", "none"])


def test_the_answer_tells_where_the_others_lose_and_what_neo_does_there(both, finding):
    setting = both.settings[0]
    cells = {(row["domain"], row["method"]): row["mean"] for row in finding.parts[0].data}
    gains = [cells[name, "neo"] - cells[name, "none"] for name in setting.domains]
    assert f"changes by {np.mean(gains):+.1f} [" in finding.answer
    assert "no domain where every method that adapts BatchNorm hurts" in finding.answer  # beyond chance


@pytest.mark.parametrize(
    ("neo", "said", "holds"),
    [
        ((300, 300), "(fog/5), NEO helps in 1 of 1", "yes"),
        ((140, 380), "(fog/5), NEO helps in 0 of 1", "partly"),
        ((201, 300), "(fog/5), NEO helps in 0 of 1", "unclear"),
    ],
)
def test_where_others_hurt_and_what_neo_does_there_follows_the_verdicts(neo, said, holds):
    right = {"none": (200, 200), "neo": neo, **dict.fromkeys(("neo-bn", "bn", "tent"), (100, 199))}
    records = records_of(right, ("fog/5", "snow/5"))
    answer, held = _cnn_judge(Measured.of(records))
    assert said in answer
    assert held == holds


def test_each_method_is_told_with_the_seeds_that_it_has():
    right = {"none": (200, 200), "neo": (250, 250)}
    records = records_of(right, ("fog/5", "snow/5")) + records_of(
        {"neo-bn": (260, 260)}, ("fog/5", "snow/5"), seeds=(1,)
    )
    answer, _ = _cnn_judge(Measured.of(records))
    assert "with NEO (400 samples, 3 seeds)" in answer
    assert "with NEO-BN (400 samples, 1 seed)" in answer
    assert Measured.of(records).extent() == "400 samples, 1 to 3 seeds"


def test_without_a_cnn_it_says_what_is_needed(evidence):
    finding = ITEM.find(evidence)
    assert (finding.holds, finding.parts) == ("unclear", [])
    assert "timm:resnet50" in finding.answer
    assert len(finding.notes) == len(evidence.settings)
