from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from support.small_studies import first_embeddings, recentered, small_study

import neotta
from neotta.paper.evidence import Evidence
from neotta.paper.item import chosen
from neotta.report.figures import display

(ITEM,) = chosen(["stacks"])


@pytest.fixture(scope="module")
def finding(evidence):
    evidence.gather([ITEM])
    return ITEM.find(evidence)


def accuracy(evidence, setting, method, moved):
    """Of a method on the embeddings as they are or re-centered here, mean over seeds, by domain."""
    model, size, found = evidence.bench(setting).model, setting.study.batch_size, {}
    for domain, seed in itertools.product(setting.domains, setting.study.seeds):
        embeddings, labels = first_embeddings(evidence, setting, domain, seed, samples=48)
        features = torch.from_numpy(recentered(embeddings, size) if moved else embeddings).float()
        adapter = neotta.create(method, model)
        logits = torch.cat([adapter.predict_embeddings(batch) for batch in features.split(size)])
        found.setdefault(domain, []).append(100 * float((logits.argmax(dim=1).numpy() == labels).mean()))
        adapter.detach()
    return {domain: np.mean(values) for domain, values in found.items()}


@pytest.mark.parametrize("method", ["lame", "t3a"])
def test_a_stack_is_the_method_on_recentered_embeddings(evidence, finding, method):
    first = evidence.settings[0]
    gain, pairs, table = finding.parts[:3]
    cells = {(row["domain"], row["method"]): row["mean"] for row in table.data}
    stacked, alone = (accuracy(evidence, first, method, moved) for moved in (True, False))
    for domain in first.domains:
        assert cells[domain, f"neo+{method}"] == pytest.approx(stacked[domain])
        assert cells[domain, method] == pytest.approx(alone[domain])
    (row,) = [row for row in pairs.data if (row["stack"], row["part"]) == (f"neo+{method}", method)]
    difference = np.mean(list(stacked.values())) - np.mean(list(alone.values()))
    assert row["mean"] == pytest.approx(difference)
    plain = np.mean([cells[domain, "none"] for domain in first.domains])
    (row,) = [row for row in gain.data if row["method"] == f"neo+{method}"]
    assert row["mean"] == pytest.approx(np.mean(list(stacked.values())) - plain)


def test_the_answer_has_one_sentence_per_subject_with_all_differences(evidence, finding):
    assert finding.holds is None
    assert finding.answer.count("On ") == len(evidence.settings)
    pairs = [part for part in finding.parts if "against their methods" in part.title]
    for table in pairs:
        assert len(table.data) == 4
        for row in table.data:
            gap = f"{row['mean']:+.1f} [{row['low']:+.1f}, {row['high']:+.1f}] points"
            assert f"{gap} against {display(row['part'])} alone" in finding.answer
    assert "<svg" in finding.parts[0].svg()


def test_nothing_measured_is_said(tmp_path):
    finding = ITEM.find(Evidence(small_study(), tmp_path / "records.jsonl"))
    assert (finding.answer, finding.parts) == ("Nothing could be measured.", [])
