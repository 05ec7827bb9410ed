"""The demonstration: its numbers, its page, its command."""

from __future__ import annotations

import io
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
import typer
from rich.console import Console
from typer.testing import CliRunner

import neotta
from neotta.cli.demo import demo as command
from neotta.data import digits
from neotta.data.corruptions import CORRUPTIONS, corrupt
from neotta.errors import OptionError, StorageError
from neotta.evaluate.predictions import PredictionStats, RunResult
from neotta.models.load import load_model
from neotta.report import real_demo
from neotta.report.demo import (
    METHODS,
    Demo,
    DemoDomain,
    bar,
    curve,
    demo_page,
    demo_table,
    headline,
    one_digit,
    run,
    share,
    summary,
    title,
)

SAMPLES = 96


@pytest.fixture(scope="module")
def results() -> Demo:
    return run(samples=SAMPLES)


@pytest.fixture(scope="module")
def page(results) -> str:
    return demo_page(results, seconds=1.0)


def made_up(without: list[int], stream: list[int], labels: list[int], name: str = "fog") -> DemoDomain:
    def answers(classes):
        sure = torch.full((len(classes),), 0.5)
        stats = PredictionStats(torch.tensor(labels), torch.tensor(classes), sure, sure, sure, sure, sure)
        return RunResult([str(row) for row in range(len(classes))], [name] * len(classes), stats)

    cameras = {method: (np.array([True, False]),) for method in METHODS}
    image = np.zeros((32, 32, 3), np.uint8)
    results = dict(zip(METHODS, map(answers, (without, labels, stream)), strict=True))
    return DemoDomain(name, results, cameras, lambda row: image)


# ---- the numbers


@pytest.mark.parametrize("name", ["clean", "contrast", "shot_noise"])
def test_accuracies_are_those_of_the_equations(results, name):
    # Written from the paper: features, running mean, W (h - c) + b. No NEO code is used.
    loaded = load_model("digits")
    data = digits("test")
    order = np.random.default_rng(0).permutation(len(data))[:SAMPLES]
    images = [data.read(i) for i in order]
    if name != "clean":
        images = [corrupt(x, name, 5, "cifar", 0, image_id=data.ids[i]) for x, i in zip(images, order, strict=True)]
    pixels = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).double() / 127.5 - 1
    model = loaded.model.double()
    with torch.no_grad():
        embeddings = model.forward_head(model.forward_features(pixels), pre_logits=True)
    weight, bias = model.head.weight.detach(), model.head.bias.detach()
    centred = torch.cat(
        [embeddings[start : start + 64] - embeddings[: start + 64].mean(dim=0) for start in range(0, SAMPLES, 64)]
    )
    labels = data.labels[order]
    domain = next(domain for domain in results.domains if domain.name == name)
    for ours, input in ((domain.results["none"], embeddings), (domain.results["neo"], centred)):
        expected = (input @ weight.T + bias).softmax(dim=1).max(dim=1)
        assert torch.equal(ours.stats.predicted, expected.indices)
        np.testing.assert_allclose(ours.stats.confidence, expected.values.numpy(), atol=1e-4)
    for method in METHODS:
        assert domain.accuracy(method) == np.mean(domain.results[method].stats.predicted.numpy() == labels)


def test_every_corruption_is_there_and_the_clean_images_first(results):
    assert [domain.name for domain in results.domains] == ["clean", *CORRUPTIONS]
    assert all(len(domain.labels) == SAMPLES for domain in results.domains)
    assert results.mean("neo") == pytest.approx(np.mean([domain.accuracy("neo") for domain in results.domains[1:]]))


def test_every_time_the_answers_are_the_same():
    first, second = (run(samples=8) for _ in range(2))
    for one, other in zip((first.real, *first.domains), (second.real, *second.domains), strict=True):
        assert (one.image(5) == other.image(5)).all()
        for method in METHODS:
            assert torch.equal(one.results[method].stats.confidence, other.results[method].stats.confidence)


def test_the_demo_shows_a_shift_and_a_repair(results):
    assert results.clean.accuracy("none") > 0.95
    assert results.mean("none") < results.clean.accuracy("none") - 0.1
    assert results.mean("neo") > results.mean("none")
    assert results.mean("neo-stream") >= results.mean("none")
    assert results.source_accuracy > 0.96
    assert results.real.accuracy("neo") > results.real.accuracy("none") + 0.1
    fixed, broken = len(results.real.fixed("neo")), len(results.real.broken("neo"))
    assert f"NEO fixed {fixed} answers and broke {broken}." in headline(results)


def test_the_real_shift_is_the_one_that_neotta_run_measures(results):
    found = real_demo.run(SAMPLES)
    assert results.real.accuracy("neo") == pytest.approx(
        next(result.accuracy for result in found.results if result.name == "neo") / 100
    )


def test_neo_stream_is_what_the_one_line_does(results):
    loaded, domain = load_model("digits"), results.domains[-1]
    model = neotta.adapt(loaded.model)
    images = torch.stack([loaded.preprocess(domain.image(row)) for row in range(SAMPLES)])
    with torch.inference_mode():
        answers = torch.cat([model(batch) for batch in images.split(64)])
    torch.testing.assert_close(
        domain.results["neo-stream"].stats.confidence.double(), answers.softmax(1).amax(1).double(), atol=1e-4, rtol=0
    )


def test_a_camera_that_sees_one_digit_keeps_its_accuracy_only_with_neo_stream(results):
    cameras = results.clean.cameras
    assert len(cameras["none"]) == 10
    assert sum(map(len, cameras["none"])) == SAMPLES
    assert share(cameras, "none") == pytest.approx(results.clean.accuracy("none"))
    assert share(cameras, "neo") < 0.5
    assert share(cameras, "neo-stream") >= share(cameras, "none") - 0.02
    assert len(results.cameras["none"]) == 150
    assert f"NEO on {100 * share(cameras, 'neo'):.1f} %" in one_digit(results)


def test_the_curve_is_the_share_of_right_answers_among_the_last_frames():
    right = np.array([False] * 4 + [True] * 12)
    cameras = {"neo": (right, ~right, right[:15])}
    expected = [np.mean([c[max(0, t - 7) : t + 1] for c in (right, ~right, right)]) for t in range(15)]
    np.testing.assert_allclose(curve(cameras, "neo"), expected)


def test_fixed_and_broken():
    domain = made_up(without=[1, 2, 3, 4], stream=[1, 0, 5, 6], labels=[1, 0, 5, 4])
    assert domain.fixed("neo-stream").tolist() == [1, 2]
    assert domain.broken("neo-stream").tolist() == [3]
    assert (domain.accuracy("none"), domain.accuracy("neo-stream")) == (0.5, 0.75)


def test_verdicts_need_more_than_a_few_images():
    labels = [0] * 20
    right, wrong = [0] * 20, [1] * 20
    assert made_up(wrong, right, labels).verdict("neo-stream") == 1
    assert made_up(right, wrong, labels).verdict("neo-stream") == -1
    assert made_up(right, right[:18] + wrong[:2], labels).verdict("neo-stream") == 0


@pytest.mark.parametrize("samples", [0, 601])
def test_wrong_options_are_refused(samples):
    with pytest.raises(OptionError, match="1 to 600"):
        run(samples)


# ---- the page


class Tags(HTMLParser):
    """Collects addresses that a browser would load, and checks that tags are closed."""

    void = frozenset({"meta", "img", "br", "link"})

    def __init__(self):
        super().__init__()
        self.addresses, self.open, self.tags = [], [], set()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.addresses += [value for key, value in attrs if key in ("src", "href", "srcset", "data", "poster")]
        if tag not in self.void:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_whole_and_loads_nothing(page):
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert tags.addresses
    assert all(address.startswith("data:image/png;base64,") for address in tags.addresses)
    assert not tags.tags & {"script", "link", "iframe", "object"}
    assert not re.search(r"https?://|@import|url\(", page)


def test_the_page_has_every_domain_and_number(page, results):
    for domain in results.domains:
        row = re.search(rf'<th scope="row">{title(domain.name)}</th>.*?</tr>', page, re.DOTALL)
        assert row is not None
        numbers = re.findall(r'<td class="number[^"]*">(.*?)</td>', row.group())
        assert numbers == [f"{100 * domain.accuracy(method):.1f}" for method in METHODS]
    assert f"{100 * results.real.accuracy('neo'):.1f} %" in page
    assert f"{len(results.real.fixed('neo'))} fixed" in page
    assert one_digit(results) in page
    lines = re.findall(r'<polyline class="(\w+)" points="([^"]+)"', page)
    assert [kind for kind, _ in lines] == ["without", "neo", "stream"] * 2
    last = [100 - float(points.rsplit(",", 1)[1]) for _, points in lines[:3]]
    np.testing.assert_allclose(last, [100 * curve(results.clean.cameras, method)[-1] for method in METHODS], atol=0.051)
    assert "prefers-color-scheme: dark" in page


def test_the_page_says_where_neo_hurts():
    labels = [0] * 20
    clean = made_up([0] * 20, [0] * 20, labels, "clean")
    worse = made_up([0] * 20, [1] * 20, labels, "fog")
    results = Demo(worse, 0.9, (clean, worse), parameters=10, state=4)
    assert "NEO-Stream fixed 0 answers and broke 20: better on 0 of 1 corruptions, worse on 1" in summary(results)
    page = demo_page(results, seconds=1.0)
    assert '<td class="number worse">0.0</td>' in page
    assert "Fixed by NEO" not in page


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_shows_the_whole_page(browser, page, tmp_path, width, scheme):
    (tmp_path / "demo.html").write_text(page, encoding="utf-8")
    complaints, asked = [], []
    with browser.new_page(viewport={"width": width, "height": 844}, color_scheme=scheme, offline=True) as shown:
        shown.on("console", lambda message: complaints.append(message.text))
        shown.on("pageerror", lambda error: complaints.append(str(error)))
        shown.on("request", lambda request: asked.append(request.url))
        shown.goto((tmp_path / "demo.html").as_uri())
        assert complaints == []
        assert [url for url in asked if not url.startswith("data:")] == [(tmp_path / "demo.html").as_uri()]
        assert shown.evaluate("document.documentElement.scrollWidth") == width  # nothing to scroll to, sideways
        pictures = shown.locator("img")
        assert pictures.count() > 0
        assert pictures.evaluate_all("all => all.every(image => image.complete && image.naturalWidth > 0)")
        assert shown.locator("h1").is_visible()


# ---- the terminal


def test_bars_show_gains_and_losses():
    assert bar(0.5, 0.8, 10).plain == "█████▓▓▓  "
    assert bar(0.8, 0.5, 10).plain == "█████░░░  "
    assert bar(1.0, 1.0, 10, ascii_only=True).plain == "=" * 10
    assert bar(0.0, 0.0, 10).plain == " " * 10


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_table_fits_the_terminal(results, width):
    console = Console(width=width, file=io.StringIO())
    console.print(demo_table(results, console))
    lines = console.file.getvalue().splitlines()
    assert len(lines) == 1 + 1 + 16 + 1 + 1 + 2
    assert max(map(len, lines)) <= width
    assert lines[1].startswith("A real shift")
    assert lines[-4].startswith("Mean of 15")
    assert lines[-3].startswith("One digit at a time")


@pytest.fixture
def cli():
    app = typer.Typer()
    app.command()(command)
    return lambda *arguments: CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_the_command_writes_the_page_and_says_where(cli, tmp_path):
    target = tmp_path / "shown [here].html"
    result = cli("--output", target, "--samples", 16)
    assert result.exit_code == 0, result.output
    assert str(target) in result.stdout
    assert "model = neotta.adapt(model)" in result.stdout
    assert "JPEG compression" in result.stdout
    assert "A camera that sees only one digit" in result.stdout
    assert "* beyond chance" in result.stdout, "colours are lost in a pipe"
    assert "17 of 17: jpeg_compression" in result.stderr
    assert target.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert [path.name for path in tmp_path.iterdir()] == [target.name]


def test_a_folder_as_output_is_refused_at_once(cli, tmp_path):
    result = cli("--output", tmp_path)
    assert isinstance(result.exception, OptionError)
    assert "is a folder" in str(result.exception)


def test_a_place_that_cannot_be_written_is_an_error_that_says_so(cli, tmp_path):
    (tmp_path / "file").write_text("")
    result = cli("--output", tmp_path / "file" / "demo.html", "--samples", 4)
    assert isinstance(result.exception, StorageError)
    assert "cannot write" in str(result.exception)
