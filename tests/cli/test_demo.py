"""The demonstration: its numbers, its page, its command."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
import typer
from rich.console import Console
from support.registered import forget_afterwards
from typer.testing import CliRunner

import neotta
from neotta.adapters.registry import find, methods
from neotta.cli.compare import render
from neotta.cli.demo import demo as command
from neotta.data import digits, open_data
from neotta.data.corruptions import CORRUPTIONS, corrupt
from neotta.errors import DataError, OptionError, StorageError
from neotta.evaluate.domains import CLEAN
from neotta.models.load import load_model
from neotta.report import demo as demonstration
from neotta.report.demo import METHODS, Demo, demo_page, headline, one_digit, real_page, run, sheet, summary, title

SAMPLES = 96


@pytest.fixture(scope="module")
def results() -> Demo:
    return run(samples=SAMPLES)


@pytest.fixture(scope="module")
def page(results) -> str:
    return demo_page(results, seconds=1.0)


# ---- the numbers


def right(part, method, domain=""):
    answers = part.answers(method, domain)
    return (answers.predicted == answers.labels).numpy()


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
    domain = name if name == "clean" else f"{name}/5"
    for method, inputs in (("none", embeddings), ("neo", centred)):
        expected, found = (
            (inputs @ weight.T + bias).softmax(dim=1).max(dim=1),
            results.corrupted.answers(method, domain),
        )
        assert torch.equal(found.predicted, expected.indices)
        np.testing.assert_allclose(found.confidence, expected.values.numpy(), atol=1e-4)
        accuracy = 100 * np.mean(found.predicted.numpy() == data.labels[order])
        assert results.corrupted.row(method, domain).mean == pytest.approx(accuracy)


def test_every_corruption_is_there_and_the_clean_images_first(results):
    assert results.corrupted.domains == [CLEAN, *(f"{name}/5" for name in CORRUPTIONS)]
    assert len(results.corrupted.order) == len(results.real.order) == SAMPLES
    means = [results.corrupted.row("neo", f"{name}/5").mean for name in CORRUPTIONS]
    assert results.corrupted.row("neo").mean == pytest.approx(np.mean(means))


def test_every_time_the_answers_are_the_same():
    first, second = (run(samples=8) for _ in range(2))
    for one, other in ((first.real, second.real), (first.cameras, second.cameras), (first.corrupted, second.corrupted)):
        assert one.domains == other.domains
        assert (one.image(0) == other.image(0)).all()
        for domain in one.domains:
            for method in METHODS:
                assert torch.equal(one.answers(method, domain).confidence, other.answers(method, domain).confidence)


def test_the_demo_shows_a_shift_and_a_repair(results):
    plain, stream, neo = (results.corrupted.row(method).mean for method in METHODS)
    assert results.corrupted.row("none", CLEAN).mean > 95
    assert plain < results.corrupted.row("none", CLEAN).mean - 10
    assert neo > plain
    assert stream >= plain
    assert results.source_accuracy > 96
    assert results.real.row("neo").mean > results.real.row("none").mean + 10
    fixed, broken = (len(results.real.changed("neo-stream", fixed=kind)) for kind in (True, False))
    assert f"{fixed} answers fixed, {broken} broken" in headline(results)
    gain = results.real.row("neo-stream").mean - results.real.row("none").mean
    assert 100 * (fixed - broken) / SAMPLES == pytest.approx(gain)


def test_images_and_answers_belong_together(results):
    data = open_data("digits-all").dataset()
    by_picture = {data.read(row).tobytes(): label for row, label in enumerate(data.labels)}
    answers = results.real.answers("none")
    assert [by_picture[results.real.image(row).tobytes()] for row in range(SAMPLES)] == answers.labels.tolist()


def test_neo_stream_is_what_the_one_line_does(results):
    loaded, last = load_model("digits"), results.corrupted.domains[-1]
    model = neotta.adapt(loaded.model)
    images = torch.stack([loaded.preprocess(results.corrupted.image(row, last)) for row in range(SAMPLES)])
    with torch.inference_mode():
        answers = torch.cat([model(batch) for batch in images.split(64)])
    confidence = results.corrupted.answers("neo-stream", last).confidence
    torch.testing.assert_close(confidence.double(), answers.softmax(1).amax(1).double(), atol=1e-4, rtol=0)


def test_a_camera_that_sees_one_digit_keeps_its_accuracy_only_with_neo_stream(results):
    cameras = results.cameras
    assert cameras.domains == [f"digit {label}" for label in range(10)]
    assert sum(len(cameras.answers("none", domain).labels) for domain in cameras.domains) == SAMPLES
    assert all(len(cameras.answers("none", domain).labels.unique()) == 1 for domain in cameras.domains)
    plain, stream, neo = (cameras.row(method).mean for method in METHODS)
    assert neo < 50
    assert stream >= plain - 2
    assert f"NEO on {neo:.1f} %" in one_digit(results)


def test_fixed_and_broken(results):
    last = results.corrupted.domains[-1]
    before, after = right(results.corrupted, "none", last), right(results.corrupted, "neo", last)
    assert results.corrupted.changed("neo", last, fixed=True) == np.flatnonzero(~before & after).tolist()
    assert results.corrupted.changed("neo", last, fixed=False) == np.flatnonzero(before & ~after).tolist()


@pytest.mark.parametrize("samples", [0, 601])
def test_wrong_options_are_refused(samples):
    with pytest.raises(OptionError, match="1 to 600"):
        run(samples)


def test_more_images_than_there_are_are_refused():
    with pytest.raises(DataError, match="only 1797"):
        real_page(1798)


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
    pictures = [address for address in tags.addresses if address.startswith("data:image/png;base64,")]
    assert pictures
    assert all(address in pictures or address.startswith(("#", "data:,")) for address in tags.addresses)
    assert not tags.tags & {"script", "iframe", "object"}
    assert not re.search(r"@import|url\((?!#)", page)


def test_the_page_has_every_domain_and_number(page, results):
    for name in results.corrupted.domains:
        row = re.search(rf"<tr><td>{title(name)}</td>.*?</tr>", page, re.DOTALL)
        assert row is not None
        numbers = re.findall(r"[\d.]+(?=\*?<)", row.group())
        assert numbers == [f"{results.corrupted.row(method, name).mean:.1f}" for method in METHODS]
    assert results.real.percent("neo") in page
    assert one_digit(results) in page
    assert page.count("<svg") == 3
    assert "prefers-color-scheme: dark" in page


def test_the_default_comes_first(page, results):
    shown = page[page.index("<h1>") :]
    stream, neo = (shown.index(results.real.percent(method)) for method in METHODS[1:])
    assert stream < neo
    assert f"becomes {results.real.row('neo-stream').mean:.0f} %" in shown
    assert ("Fixed by NEO-Stream" in page) == bool(results.real.changed("neo-stream", fixed=True))


def test_verdicts_are_those_of_the_comparison(results):
    table = results.corrupted.table
    verdicts = table["verdict"][(table["method"] == "neo") & table["domain"].str.contains("/")].tolist()
    words = f"helps under {verdicts.count('helps')} of 15 corruptions and hurts under {verdicts.count('hurts')}"
    assert "NEO fixed" in summary(results)
    assert words in summary(results)
    numbers = dict(sheet(results).sections[0].tables[0][1].rows)
    marks = [numbers[title(name)][2].mark for name in CORRUPTIONS]
    assert [mark or "can't tell" for mark in marks] == verdicts
    assert numbers["One digit, clean"][2].mark == "hurts"


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


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_table_fits_the_terminal(results, width):
    console = Console(width=width, file=io.StringIO())
    console.print(render(sheet(results), width))
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert [line.split("  ")[0] for line in lines[3:5]] == ["A real shift", "Clean"]
    assert any(line.startswith("Mean of 15") for line in lines)


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
    assert "* and colours" in result.stdout, "colours are lost in a pipe"
    assert "48 runs to do" in result.stderr
    assert target.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert [path.name for path in tmp_path.iterdir()] == [target.name]


def test_it_ends_with_a_line_where_torchvision_was_built_for_another_torch(cli, tmp_path):
    whole = subprocess.run([sys.executable, "-c", "import torchvision"], capture_output=True).returncode == 0
    last = cli("--output", tmp_path / "demo.html", "--samples", 4).stdout.splitlines()[-1]
    assert ("`import timm` fails" in last) is not whole


def test_a_folder_as_output_is_refused_at_once(cli, tmp_path):
    result = cli("--output", tmp_path)
    assert isinstance(result.exception, OptionError)
    assert "is a folder" in str(result.exception)


def test_a_place_that_cannot_be_written_is_an_error_that_says_so(cli, tmp_path):
    (tmp_path / "file").write_text("")
    result = cli("--output", tmp_path / "file" / "demo.html", "--samples", 4)
    assert isinstance(result.exception, StorageError)
    assert "cannot write" in str(result.exception)


# ---- every method on the real shift


def test_the_model_was_trained_on_other_images():
    loaded = load_model("mnist")
    assert loaded.labels == tuple("0123456789")
    assert sum(parameter.numel() for parameter in loaded.model.parameters()) < 80_000
    data = open_data("digits-all").dataset()
    assert len(data) == 1797
    assert sorted(data.ids) == sorted([*digits("train").ids, *digits("test").ids])


def test_every_method_that_applies_is_compared(monkeypatch, results):
    class Own(find("neo")):
        name, title = "own", "Our own"

    forget_afterwards(monkeypatch)
    neotta.register(Own)
    chosen = {name: methods()[name] for name in ("none", "neo", "neo-stream", "own", "neo-bn", "bn", "foa")}
    monkeypatch.setattr(demonstration, "methods", lambda: chosen)
    tables, page = real_page(SAMPLES)
    accuracies, differences = (grid for _, grid in tables.sections[0].tables)
    assert set(accuracies.columns) == {"none", "neo", "neo-stream", "Our own"}
    for method in METHODS:
        shown = dict(zip(accuracies.columns, accuracies.rows[0][1], strict=True))[method]
        assert shown.text.startswith(f"{results.real.row(method).mean:.1f} ±")
    assert "Our own" in differences.columns
    assert any("needs 32 clean images" in note for note in tables.notes), "images of the other collection are not taken"
    assert all(note in page for note in tables.notes if "'" not in note)
    assert "http" not in page.replace("http://www.w3.org", "")


@pytest.mark.slow
def test_neo_wins_back_much_of_what_the_shift_costs():
    """A finding, pinned: if it changes, the documentation has to."""
    loaded = load_model("mnist")
    data = open_data("digits-all").dataset()
    share = {}
    for method in ("none", "neo"):
        adapter = neotta.create(method, loaded.model)
        images = torch.stack([loaded.preprocess(data.read(index)) for index in range(len(data))])
        answers = torch.cat([adapter(part).argmax(dim=1) for part in images.split(64)])
        share[method] = float((answers.numpy() == data.labels).mean())
    assert share["none"] == pytest.approx(0.344, abs=0.01)
    assert share["neo"] > share["none"] + 0.2


def test_the_command_shows_every_method(cli, tmp_path, monkeypatch):
    chosen = {name: methods()[name] for name in METHODS}
    monkeypatch.setattr(demonstration, "methods", lambda: chosen)
    monkeypatch.chdir(tmp_path)
    done = cli("--real", "--samples", SAMPLES)
    assert done.exit_code == 0, done.output
    assert "Difference to none" in done.stdout
    assert (tmp_path / "neotta-demo-real.html").is_file()
