"""Figure 3: the dimensions that change most, and how close embeddings come to the clean ones without the shift."""

import numpy as np
import pytest
from support.digits_by_hand import embeddings, labels

from neotta.evaluate.domains import CLEAN
from neotta.paper import latent
from neotta.paper.evidence import Evidence
from neotta.paper.item import chosen
from neotta.paper.study import Study, Subject


@pytest.fixture(scope="module")
def found(evidence):
    items = chosen(["dimensions", "alignment"])
    evidence.gather(items)
    return [item.find(evidence) for item in items]


def test_the_dimensions_of_most_samples_are_counted(found):
    (figure, table, *others), _ = found[0].parts, found[1]
    assert len(others) == 2, "a figure and a table for the second subject, too"
    for row in table.data:
        most = np.abs(embeddings(row["domain"]) - embeddings("clean")).argmax(1)
        often = np.sort(np.bincount(most, minlength=64))[::-1]
        for share, name in ((0.8, "for_80_percent"), (0.95, "for_95_percent")):
            count = row[name]
            assert often[:count].sum() >= share * len(most) > often[: count - 1].sum()
        assert (row["dimensions"], row["samples"]) == (64, 600)
        line = [point["share"] for point in figure.data if point["domain"] == row["domain"]]
        assert line == pytest.approx(often.cumsum()[: len(line)] / len(most), abs=1e-6)
        assert line[-1] == 1
    assert [row["domain"] for row in table.data] == ["fog/5", "contrast/5"]


def test_where_nothing_is_to_be_measured_nothing_is(tmp_path):
    study = Study(subjects=[Subject(corruptions=["fog"])], methods=["none"], samples=16, seeds=[2020])
    Evidence(study, tmp_path / "records.jsonl").gather(chosen(["corruptions"]))
    evidence = Evidence(study, tmp_path / "records.jsonl", cache=tmp_path / "cache", only_recorded=True)
    for item in chosen(["dimensions", "alignment", "collapse"]):
        finding = item.find(evidence)
        assert finding.answer == "Nothing could be measured."
        assert any("is not recorded" in note for note in finding.notes)
    assert not list((tmp_path / "cache").rglob("*.safetensors"))


def test_the_claim_on_dimensions_is_judged_by_their_share(found):
    shares = [row["for_80_percent"] / 64 for table in found[0].parts[1::2] for row in table.data]
    fewer = [share < 50 / 768 for share in shares]
    contrast = [
        row["for_95_percent"] for table in found[0].parts[1::2] for row in table.data if "contr" in row["domain"]
    ]
    assert contrast
    fewer += [count / 64 < 20 / 768 for count in contrast]
    assert f"under contrast, 95 % of the samples have it in {contrast[0]} " in found[0].answer
    assert found[0].holds == ("yes" if all(fewer) else "partly" if any(fewer) else "no")
    assert f"{100 * max(shares[:2]):.1f} %" in found[0].answer


def test_alignment_is_that_of_vectors_with_parts_of_the_shift_removed(found):
    cosines, norms = found[1].parts[1], found[1].parts[3]
    clean, truth = embeddings("clean"), labels()
    for domain in ("fog/5", "contrast/5"):
        shifted = embeddings(domain)
        change = shifted - clean
        everywhere = change.mean(0)
        of_class = np.stack([change[truth == label].mean(0) for label in range(10)])[truth] - everywhere
        vectors = {
            "shifted": shifted,
            "minus_global": shifted - everywhere,
            "minus_class": shifted - everywhere - of_class,
            "minus_residual": clean,
            "minus_mean": shifted - shifted.mean(0),
        }
        for name, vector in vectors.items():
            lengths = np.linalg.norm(clean, axis=1), np.linalg.norm(vector, axis=1)
            cosine = np.mean((clean * vector).sum(1) / lengths[0] / lengths[1])
            assert _row(cosines, domain)[name] == pytest.approx(cosine, abs=1e-5)
            assert _row(norms, domain)[name] == pytest.approx(np.mean(np.abs(lengths[0] - lengths[1])), abs=1e-5)


def test_alignment_averages_over_domains_and_stands_beside_the_paper(found):
    beside, cosines = found[1].parts[:2]
    for name in ("shifted", "minus_class", "minus_mean"):
        mean = (_row(cosines, "fog/5")[name] + _row(cosines, "contrast/5")[name]) / 2
        assert _row(cosines, "average")[name] == pytest.approx(mean)
        row = next(row for row in beside.data if row["vector"] == latent.VECTORS[name])
        assert row["measured_mean"] == pytest.approx(mean), "there is no Gaussian noise here"
    assert [row["published"] for row in beside.data] == [-0.44, 0.51, 0.64, 1.00, 0.49]
    assert "mean over the domains" in beside.caption


def test_all_domains_show_the_same_images_in_the_same_order(evidence):
    setting = evidence.settings[0]
    bench = evidence.bench(setting)
    clean, shifted, truth = latent.pair(
        bench, latent.same_images(setting, CLEAN, 20), latent.same_images(setting, "fog/5", 20)
    )
    order = bench.orders(latent.same_images(setting, CLEAN, 20))[0].index
    assert np.array_equal(truth, labels()[order])
    assert np.allclose(clean, embeddings("clean")[order], atol=1e-5)
    assert np.allclose(shifted, embeddings("fog/5")[order], atol=1e-5)


def test_a_limit_on_what_is_scored_limits_the_images_looked_at(tmp_path):
    study = Study(subjects=[Subject(corruptions=["fog"])], methods=["none"], samples=16, held_out_samples=30, seeds=[1])
    setting = Evidence(study, tmp_path / "records.jsonl").settings[0]
    assert latent.same_images(setting, "fog/5").samples == 46


def test_without_clean_images_the_items_say_what_they_need(tmp_path):
    study = Study(subjects=[Subject(corruptions=[])], methods=["none"], samples=16, seeds=[1])
    evidence = Evidence(study, tmp_path / "records.jsonl")
    for item in chosen(["dimensions", "alignment"]):
        finding = item.find(evidence)
        assert (finding.holds, finding.parts) == ("unclear", [])
        assert "clean and shifted versions of the same images are needed" in finding.notes[0]


def test_the_figure_can_be_drawn(found):
    assert "gaussian" not in found[0].parts[0].svg()
    assert "contrast" in found[0].parts[0].svg()


def _row(table, domain):
    return next(row for row in table.data if row["domain"] == domain)
