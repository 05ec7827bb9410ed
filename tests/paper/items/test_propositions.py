"""What the propositions rest on: sizes of mean and bias, and whether they change the class."""

import numpy as np
import pytest
import torch
from support.digits_by_hand import embeddings, head

from neotta.paper.item import chosen
from neotta.paper.items.collapse import on_clean, on_shifted

(ITEM,) = chosen(["propositions"])
DOMAINS = ("fog/5", "contrast/5")


@pytest.fixture(scope="module")
def found(evidence):
    evidence.gather([ITEM])
    return ITEM.find(evidence)


def test_the_measures_by_their_definitions(found):
    clean, (weight, bias) = embeddings("clean"), head()
    products = clean @ weight.T
    size = np.linalg.norm(products - products.mean(1, keepdims=True), axis=1).mean()
    classes = (products + bias).argmax(1)
    measured = {row["measure"]: row["measured"] for row in found.parts[0].data}
    assert measured["mean"] == pytest.approx(
        np.linalg.norm(clean.mean(0)) / np.linalg.norm(clean, axis=1).mean(), rel=1e-4
    )
    assert measured["bias"] == pytest.approx(np.linalg.norm(bias - bias.mean()) / size, rel=1e-4)
    assert measured["without_bias"] == pytest.approx(np.mean(products.argmax(1) == classes))
    cosines = products / np.linalg.norm(weight, axis=1)
    assert measured["by_cosine"] == pytest.approx(np.mean(cosines.argmax(1) == classes))
    cosine = []
    for domain in DOMAINS:
        mean = embeddings(domain).mean(0)
        shift = mean - clean.mean(0)
        cosine.append(mean @ shift / np.linalg.norm(mean) / np.linalg.norm(shift))
    assert measured["shift"] == pytest.approx(np.mean(cosine), rel=1e-4)
    assert [row["domain"] for row in found.parts[1].data] == list(DOMAINS)


def test_where_mean_and_bias_vanish_everything_is_as_the_propositions_say():
    embeddings = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    weight = torch.tensor([[1.0, 0.1], [-1.0, 0.0], [0.0, 1.0], [0.1, -1.0]])
    assert on_clean(embeddings, weight, None) == pytest.approx(
        {"mean": 0, "mean_logits": 0, "bias": 0, "without_bias": 1, "by_cosine": 1}
    )
    shifted = embeddings + torch.tensor([3.0, 4.0])
    assert on_shifted(embeddings, shifted, weight, torch.zeros(4)) == pytest.approx({"shift": 1, "same_class": 1})


def test_a_bias_that_decides_is_seen():
    embeddings, weight = torch.eye(2), torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    measured = on_clean(embeddings, weight, torch.tensor([5.0, 0.0]))
    assert measured["without_bias"] == 0.5
    assert measured["bias"] > 1
    moved = on_shifted(embeddings + 2, embeddings, weight, None)
    assert moved["shift"] == pytest.approx(-1)
    assert moved["same_class"] == 0.5
