"""`neotta paper` from the command line, in the same process where that tells the same."""

import json

import pytest
import tomli_w
import typer
from support.data_makers import class_folders, corrupted
from typer.testing import CliRunner

from neotta.cli.app import app
from neotta.errors import DataError, OptionError
from neotta.evaluate.records import Records, write_records

TINY = ["--samples", "48", "--seeds", "2", "--methods", "none,neo", "--corruptions", "fog,contrast"]


def call(*words):
    result = CliRunner().invoke(app, ["paper", *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("paper")
    (folder / "cache.toml").write_text(f"cache = {json.dumps(str(folder / 'cache'))}\n")
    words = [*TINY, "--config", str(folder / "cache.toml")]
    output = call("corruptions", *words, "-o", str(folder / "report"), "--format", "html,md,latex,csv")
    return folder / "report", words, output


def test_without_an_item_all_are_listed():
    from neotta.paper.item import items

    output = call()
    assert all(name in output for name in items())


def test_the_command_has_few_options_and_its_help_two_examples():
    options = [each for each in typer.main.get_command(app).commands["paper"].params if each.opts[0].startswith("-")]
    assert len(options) <= 12
    assert call("--help").count("neotta paper ") == 2 + 1  # and the usage


def test_a_report_with_its_files(report):
    folder, _, output = report
    assert "changes the mean accuracy from" in output
    assert {"report.html", "records.jsonl", "corruptions.md", "corruptions.tex"} <= {
        path.name for path in folder.iterdir()
    }
    assert "Next: neotta compare" in output
    assert "is not judged: T3A, SAR, LAME, TENT, CoTTA, FOA and Surgeon are missing" in output
    assert "| domain | No adaptation | NEO |" in (folder / "corruptions.md").read_text()
    assert r"\begin{tabular}{lrr}" in (folder / "corruptions.tex").read_text()
    table = next(folder.glob("corruptions-1-*.csv")).read_text().splitlines()
    assert table[0] == "domain,method,mean,half_width,low,high,seeds,failed"


def test_the_page_shows_the_mean_of_the_records(report):
    folder, _, _ = report
    records = [record for record in Records(folder / "records.jsonl").read() if record.domain != "clean"]
    found = {method: sum(r.metrics["top1"] for r in records if r.method == method) / 4 for method in ("none", "neo")}
    page = (folder / "report.html").read_text()
    assert f"from {found['none']:.1f} to {found['neo']:.1f} %" in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "neotta paper corruptions" in page


def test_nothing_is_measured_twice(report):
    folder, words, _ = report
    before = (folder / "records.jsonl").read_text()
    call("corruptions", *words, "-o", str(folder))
    assert (folder / "records.jsonl").read_text() == before


def test_what_is_recorded_so_far_makes_a_report(report, tmp_path):
    folder, words, _ = report
    recorded = folder / "records.jsonl"
    before = recorded.read_text()
    output = call("corruptions", *words, "--seeds", "3", "--recorded", str(recorded), "-o", str(tmp_path))
    assert recorded.read_text() == before
    assert "NEO changes the mean accuracy" in output
    assert "not carried out: corruptions: digits: 6 of its runs are not recorded" in output


def test_parquet_files_make_the_same_report(report, tmp_path):
    folder, words, _ = report
    records = Records(folder / "records.jsonl").read()
    write_records(records, tmp_path / "records.parquet")
    rest, found = [*words, "--format", "md,csv"], []
    for file in (folder / "records.jsonl", tmp_path / "records.parquet"):
        output = tmp_path / file.suffix[1:]
        call("corruptions", *rest, "--recorded", str(file), "-o", str(output))
        found.append({path.name: path.read_text().split("```")[0] for path in output.iterdir()})
    assert found[0] == found[1]


def test_several_subjects_from_a_file(tmp_path, report):
    folder, _, _ = report
    cache = f"cache = {json.dumps(str(folder.parent / 'cache'))}\n"
    own = {"A": {"severity": 3}, "B": {"severity": 5, "methods": ["none", "neo", "lame"]}}
    subjects = [{"name": name, "corruptions": ["fog"], **entries} for name, entries in own.items()]
    tables = "".join(
        "[[subjects]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in subject.items())
        for subject in subjects
    )
    (tmp_path / "study.toml").write_text(f'{cache}samples = 32\nseeds = [1]\nmethods = ["none", "neo"]\n{tables}')
    words = ["--config", str(tmp_path / "study.toml"), "-o", str(tmp_path / "out"), "--format", "md"]
    output = call("corruptions", "batch-size", *words)
    assert "On A, NEO" in output
    assert "On B, NEO" in output
    records = Records(tmp_path / "out" / "records.jsonl").read()
    assert {record.domain for record in records if record.method == "neo"} == {"clean", "fog/3", "fog/5"}
    assert {record.domain for record in records if record.method == "lame"} == {"clean", "fog/5"}
    claims = (tmp_path / "out" / "claims.md").read_text().splitlines()
    assert claims[0] == "| claim | A | B |"
    assert claims[2:] == ["| corruptions | not judged | not judged |", "| batch-size | yes | yes |"]
    printed = [line.split() for line in output.splitlines()]
    assert ["batch-size", "yes", "yes"] in printed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["coruptions"], "did you mean 'corruptions'"),
        (["all", "coruptions"], "did you mean 'corruptions'"),
        (["all", "--format", "gif"], "takes some of html,md"),
        (["all", "--recorded", "nowhere.jsonl"], "there is no file of results 'nowhere.jsonl'"),
        (["all", "--methods", "tnet"], "did you mean 'tent'"),
        (["all", "--seeds", "2020"], "one seed is a list"),
        (["corruptions", "--data", "nowhere"], "nowhere"),
    ],
)
def test_mistakes_are_named(words, message, tmp_path):
    from neotta.errors import NeottaError

    with pytest.raises(NeottaError, match=message):
        CliRunner().invoke(app, ["paper", *words, "-o", str(tmp_path)], catch_exceptions=False)


def test_what_could_not_be_carried_out_is_no_success(tmp_path):
    (tmp_path / "file").write_text("no folder")
    (tmp_path / "study.toml").write_text(f"cache = {json.dumps(str(tmp_path / 'file'))}\n")
    words = [*TINY, "-o", str(tmp_path / "out"), "--config", str(tmp_path / "study.toml")]
    result = CliRunner().invoke(app, ["paper", "corruptions", *words], catch_exceptions=False)
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
            app, ["paper", "all", "--config", str(tmp_path / "study.toml"), "--data", "x"], catch_exceptions=False
        )


def test_the_command_of_an_item_is_told_with_the_options_typed(report):
    folder, words, _ = report
    text = (folder / "corruptions.md").read_text()
    command = f"neotta paper corruptions --config {words[-1]} --corruptions fog,contrast --methods none,neo"
    assert f"{command} --samples 48 --seeds 2 -o {folder}" in text


def test_files_of_another_device_have_to_exist(tmp_path):
    (tmp_path / "study.toml").write_text('merge = ["nowhere.jsonl"]\n')
    with pytest.raises(DataError, match=r"no file of records 'nowhere.jsonl'"):
        call("resources", "--config", str(tmp_path / "study.toml"))


def test_foa_is_in_the_table_of_imagenet_c_if_there_is_source_data(tmp_path):
    classes = ("n01443537", "n01629819", "n01641577")
    shifted = corrupted(tmp_path / "imagenet-c", ["fog", "snow"], [5], classes, size=(32, 32))
    clean = class_folders(tmp_path / "val", classes, per_class=12, size=(40, 36))
    options = {"pretrained": False, "depth": 1, "embed_dim": 48, "num_heads": 3, "img_size": 32, "patch_size": 8}
    subject = {"model": "timm:vit_tiny_patch16_224", "data": f"imagenet-c={shifted}", "model_options": options}
    study = {"methods": ["none", "foa", "neo"], "samples": 6, "seeds": [1], "jobs": 1, "cache": str(tmp_path / "cache")}

    def table(**more):
        (tmp_path / "study.toml").write_text(tomli_w.dumps({**study, "subjects": [{**subject, **more}]}))
        said = call(
            "corruptions", "--config", str(tmp_path / "study.toml"), "--format", "md", "-o", str(tmp_path / "report")
        )
        text = (tmp_path / "report" / "corruptions.md").read_text()
        return said, text, next(line for line in text.splitlines() if line.startswith("| domain"))

    needs = "FOA needs 32 clean images: give source"
    for more in ({}, {"domains": ["fog/5"]}):
        said, text, head = table(**more)
        assert "foa is left out on timm:vit_tiny_patch16_224 on imagenet-c: FOA needs 32 clean images" in said
        assert f"- foa was left out: {needs}" in text
        assert head == "| domain | No adaptation | NEO |"
    said, text, head = table(source=f"imagenet={clean}")
    assert "left out" not in said + text
    assert head == "| domain | No adaptation | FOA | NEO |"
