"""`neotta paper` from the command line, in the same process where that tells the same."""

import json
import shlex

import pytest
import typer
from support.data_makers import class_folders, corrupted
from typer.testing import CliRunner

from neotta.cli.app import app
from neotta.cli.paper import FLAGS, _command
from neotta.errors import OptionError
from neotta.evaluate.records import Records, write_records

TINY = ["--samples", "48", "--seeds", "2", "--methods", "none,neo", "--corruptions", "fog,contrast"]


def call(*words):
    result = CliRunner().invoke(app, ["paper", *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("paper")
    words = [*TINY, "-o", str(folder / "report"), "--cache", str(folder / "cache")]
    output = call("corruptions", *words, "--format", "html,md,latex,csv")
    return folder / "report", words, output


def test_the_list_names_every_item():
    from neotta.paper.catalog import items

    output = call("--list")
    assert all(name in output for name in items())


def test_a_report_with_its_files(report):
    folder, _, output = report
    assert "changes the mean accuracy from" in output
    assert {"report.html", "records.jsonl", "corruptions.md", "corruptions.tex"} <= {
        path.name for path in folder.iterdir()
    }
    assert "| domain | none | neo |" in (folder / "corruptions.md").read_text()
    assert r"\begin{tabular}{lrr}" in (folder / "corruptions.tex").read_text()
    table = next(folder.glob("corruptions-1-*.csv")).read_text().splitlines()
    assert table[0] == "domain,method,mean,half_width,low,high,seeds,failed"


def test_the_page_shows_the_mean_of_the_records(report):
    folder, _, _ = report
    records = [record for record in Records(folder / "records.jsonl").read() if record["domain"] != "clean"]
    found = {
        method: sum(r["metrics"]["top1"] for r in records if r["method"] == method) / 4 for method in ("none", "neo")
    }
    page = (folder / "report.html").read_text()
    assert f"from {found['none']:.1f} to {found['neo']:.1f} %" in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "neotta paper corruptions" in page


def test_nothing_is_measured_twice(report):
    folder, words, _ = report
    before = (folder / "records.jsonl").read_text()
    call("corruptions", *words)
    assert (folder / "records.jsonl").read_text() == before


def test_what_is_recorded_so_far_makes_a_report(report, tmp_path):
    folder, words, _ = report
    recorded = folder / "records.jsonl"
    before = recorded.read_text()
    rest = [*words[: words.index("-o")], *words[words.index("--cache") :], "--records", str(recorded)]
    output = call("corruptions", *rest, "--seeds", "3", "--only-recorded", "-o", str(tmp_path))
    assert recorded.read_text() == before
    assert "NEO changes the mean accuracy" in output
    assert "not carried out: corruptions: digits: 6 of its runs are not recorded" in output


def test_old_names_and_parquet_files_make_the_same_report(report, tmp_path):
    folder, words, _ = report
    records = Records(folder / "records.jsonl").read()
    write_records(records, tmp_path / "records.parquet")
    rest = [*words[: words.index("-o")], *words[words.index("--cache") :], "--only-recorded", "--format", "md,csv"]
    found = []
    for name, file in (("corruptions", folder / "records.jsonl"), ("table-corruptions", tmp_path / "records.parquet")):
        call(name, *rest, "--records", str(file), "-o", str(tmp_path / name))
        found.append({path.name: path.read_text().split("```")[0] for path in (tmp_path / name).iterdir()})
    assert found[0] == found[1]


def test_several_subjects_from_a_file(tmp_path, report):
    _, words, _ = report
    subjects = [{"name": name, "corruptions": ["fog"], "severity": level} for name, level in (("A", 3), ("B", 5))]
    tables = "".join(
        "[[subjects]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in subject.items())
        for subject in subjects
    )
    (tmp_path / "study.toml").write_text(f'samples = 32\nseeds = [1]\nmethods = ["none", "neo"]\n{tables}')
    cache = words[words.index("--cache") :]
    output = call("corruptions", "--config", str(tmp_path / "study.toml"), "-o", str(tmp_path / "out"), *cache)
    assert "On A, NEO" in output
    assert "On B, NEO" in output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "name an item"),
        (["coruptions"], "did you mean 'corruptions'"),
        (["all", "table-coruptions"], "did you mean 'corruptions'"),
        (["all", "--format", "pdf"], "takes some of html,md"),
        (["all", "--records", "old.parquet"], "convert it with `neotta records convert old.parquet old.jsonl`"),
        (["all", "--methods", "tnet"], "did you mean 'tent'"),
        (["all", "--seeds", "2020"], "one seed is a list"),
        (["corruptions", "--data", "nowhere"], "nowhere"),
        (["corruptions", "--merge", "nowhere.jsonl"], "nowhere.jsonl"),
    ],
)
def test_mistakes_are_named(words, message, tmp_path):
    from neotta.errors import NeottaError

    with pytest.raises(NeottaError, match=message):
        CliRunner().invoke(app, ["paper", *words, "-o", str(tmp_path)], catch_exceptions=False)


def test_what_could_not_be_carried_out_is_no_success(report, tmp_path):
    _, words, _ = report
    (tmp_path / "file").write_text("no folder")
    rest = [*words[: words.index("-o")], "-o", str(tmp_path / "out"), "--cache", str(tmp_path / "file")]
    result = CliRunner().invoke(app, ["paper", "corruptions", *rest], catch_exceptions=False)
    assert result.exit_code == 1
    assert "not carried out: corruptions: digits: embeddings cannot be kept" in " ".join(result.output.split())


def test_an_unknown_entry_of_a_subject_is_named_with_the_known_ones(tmp_path):
    (tmp_path / "study.toml").write_text('[[subjects]]\nmodle = "digits"\n')
    with pytest.raises(OptionError, match=r"unknown entry 'subjects.0.modle': known are model, model_options"):
        CliRunner().invoke(app, ["paper", "all", "--config", str(tmp_path / "study.toml")], catch_exceptions=False)


def test_what_is_said_of_one_model_does_not_go_with_several(tmp_path):
    (tmp_path / "study.toml").write_text('[[subjects]]\nname = "A"\n[[subjects]]\nname = "B"\n')
    with pytest.raises(OptionError, match="several subjects"):
        CliRunner().invoke(
            app, ["paper", "all", "--config", str(tmp_path / "study.toml"), "--severity", "3"], catch_exceptions=False
        )


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (["all", "--samples", "8"], ["--samples", "8"]),
        (["gains", "--corruptions", "all", "--force", "cnn"], ["--corruptions", "all", "--force"]),
        (["-o", "paper", "all"], ["-o", "paper"]),
        (["-opaper", "all", "--seeds=2", "cnn"], ["-opaper", "--seeds=2"]),
    ],
)
def test_the_command_of_an_item_keeps_all_options_and_their_values(monkeypatch, given, kept):
    monkeypatch.setattr("sys.argv", ["neotta", "paper", *given])
    assert shlex.split(_command("full")) == ["neotta", "paper", "full", *kept]


def test_the_options_without_a_value_are_known():
    options = typer.main.get_command(app).commands["paper"].params
    flags = {name for option in options if getattr(option, "is_flag", False) for name in option.opts}
    assert flags - {"--list", "--help", "-h"} == set(FLAGS)


def test_foa_is_in_the_table_of_imagenet_c_if_there_is_source_data(tmp_path):
    classes = ("n01443537", "n01629819", "n01641577")
    shifted = corrupted(tmp_path / "imagenet-c", ["fog", "snow"], [5], classes, size=(32, 32))
    clean = class_folders(tmp_path / "val", classes, per_class=12, size=(40, 36))
    words = ["--model", "timm:vit_tiny_patch16_224", "--data", f"imagenet-c={shifted}", "--methods", "none,foa,neo"]
    for option in ("pretrained=false", "depth=1", "embed_dim=48", "num_heads=3", "img_size=32", "patch_size=8"):
        words += ["--model-option", option]
    words += ["--samples", "6", "--seeds", "1", "--jobs", "1", "--format", "md", "--cache", str(tmp_path / "cache")]

    def table(*more):
        said = call("table-corruptions", *words, *more, "-o", str(tmp_path / "report"))
        text = (tmp_path / "report" / "corruptions.md").read_text()
        return said, text, next(line for line in text.splitlines() if line.startswith("| domain"))

    needs = "FOA needs 32 clean images: give --source-data"
    for more in ([], ["--domains", "fog/5"]):
        said, text, head = table(*more)
        assert "foa is left out on timm:vit_tiny_patch16_224 on imagenet-c: FOA needs 32 clean images" in said
        assert f"- foa was left out: {needs}" in text
        assert head == "| domain | none | neo |"
    said, text, head = table("--source-data", f"imagenet={clean}")
    assert "left out" not in said + text
    assert head == "| domain | none | neo | foa |"
