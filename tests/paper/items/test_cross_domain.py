"""Figure 6: the centroid of one domain on another."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.figure import Figure as Canvas
from support.answered import packed
from support.digits_by_hand import accuracy, embeddings, permutation

from neotta.evaluate.metrics import Interval
from neotta.evaluate.records import Record
from neotta.paper.claims import family, short_names
from neotta.paper.item import chosen
from neotta.paper.items import cross_domain
from neotta.paper.measured import Measured

DOMAINS = ("fog/5", "contrast/5")


@pytest.fixture(scope="module")
def found(evidence):
    item = chosen(["cross-domain"])[0]
    evidence.gather([item])
    assert not evidence.problems
    return item.find(evidence)


def test_accuracy_changes_with_the_centroid_of_the_source(found):
    everything = np.arange(600)
    for source in DOMAINS:
        centroid = embeddings(source)[permutation(2020)[:48]].mean(0)
        for target in DOMAINS:
            change = accuracy(target, everything, centroid) - accuracy(target, everything)
            assert _entry(found.parts[0], source, target)["gain"] == pytest.approx(change, abs=0.01)


def test_cosines_are_those_of_the_centroids(found):
    means = {domain: embeddings(domain)[permutation(2020)[:48]].mean(0) for domain in DOMAINS}
    for source in DOMAINS:
        for target in DOMAINS:
            product = means[source] @ means[target]
            cosine = product / np.linalg.norm(means[source]) / np.linalg.norm(means[target])
            assert _entry(found.parts[1], source, target)["cosine"] == pytest.approx(cosine, abs=1e-5)


def test_one_seed_and_all_pairs_are_run(evidence, found):
    plan = chosen(["cross-domain"])[0].plans(evidence.settings[0])[0]
    assert (plan.seeds, len(plan.runs(DOMAINS))) == ([2020], 2 * 2 * 2)
    assert any("mild: has one domain" in note for note in found.notes)


def test_fog_and_contrast_say_nothing_of_noises_and_blurs(found):
    assert found.holds == "unclear"
    helped = sum(row["gain"] > 0 for row in found.parts[0].data if row["source"] != row["target"])
    assert found.answer == f"On digits, the centroid of another domain helps in {helped} of 2 pairs of domains."


def test_names_of_axes_fit_a_figure_of_two_domains(found):
    for figure in found.parts:
        canvas = Canvas(figsize=figure.size, layout="constrained")
        figure.draw(canvas)
        canvas.draw_without_rendering()
        for axes in canvas.axes:
            box = axes.yaxis.label.get_window_extent()
            assert 0 <= box.y0 < box.y1 <= canvas.bbox.height


NOISES, OTHER = ("gaussian_noise/5", "shot_noise/5"), "fog/5"


def test_the_claim_follows_the_intervals():
    def cosines(alike, foreign):
        """Of the centroids of noises with each other and with fog; on fog itself everything is splendid."""
        domains = [*NOISES, OTHER]
        found = {(source, target): foreign for source in domains for target in domains}
        found |= {(source, target): alike for source in NOISES for target in NOISES}
        return found | {(source, OTHER): 99.0 for source in domains}

    more, less, maybe = (Interval(mean, 1.0, 1) for mean in (3.0, -3.0, 0.5))
    assert cross_domain._holds(more, more, cosines(0.9, 0.1)) == "yes"
    assert cross_domain._holds(more, more, cosines(0.1, 0.9)) == "partly"
    assert cross_domain._holds(more, maybe, cosines(0.9, 0.1)) == "unclear"
    assert cross_domain._holds(less, less, cosines(0.1, 0.9)) == "no"


def test_sources_are_compared_on_the_same_targets_image_by_image():
    images = 400
    right = {"none": 100, "alike": 160, "foreign": 120}  # of the images of a noise; on fog all are right
    records = []
    for source, target, method in itertools.product([*NOISES, OTHER], [*NOISES, OTHER], ["none", "neo"]):
        kind = "none" if method == "none" else "alike" if source in NOISES else "foreign"
        count = images if target == OTHER else right[kind]
        about = {"key": f"{source} {target} {method}", "status": "ok", "model": "m", "data": "d", "seed": 1}
        about |= {"order": "cross-domain", "source_domain": source, "domain": target, "domains": [target]}
        about |= {"method": method, "batch_size": 8, "samples": 8, "metrics": {"top1": 100 * count / images}}
        records.append(Record.make({**about, "answers": packed(np.arange(images) < count, domain=target)}))
    over_none, over_others = cross_domain._gaps(*cross_domain._values(Measured.of(records)))
    assert over_none.mean == pytest.approx(15.0)
    assert over_others.mean == pytest.approx(10.0)
    assert over_none.ends[0] > 0
    assert over_others.ends[0] > 0


def test_a_pair_of_which_a_run_failed_is_left_out():
    neo, none = (
        {("a", domain): SimpleNamespace(top1=number) for domain in domains}
        for number, domains in ((41.5, "b"), (40, "bc"))
    )
    assert cross_domain._changes(neo, none) == {("a", "b"): 1.5}


def test_the_matrices_can_be_drawn(found):
    for figure in found.parts:
        assert "target: where the images are from" in figure.svg()


def test_names_for_figures():
    assert short_names(["gaussian_noise/5", "fog/5"]) == {"gaussian_noise/5": "gaussian noise", "fog/5": "fog"}
    assert short_names(["fog/3", "fog/5"]) == {"fog/3": "fog/3", "fog/5": "fog/5"}
    assert short_names(["camera_1"]) == {"camera_1": "camera 1"}
    assert (family("zoom_blur/2"), family("sketch")) == ("blur", "")


def _entry(figure, source, target):
    return next(row for row in figure.data if (row["source"], row["target"]) == (source, target))
