from __future__ import annotations

import csv
import io
import re

import numpy as np
import pytest
from rich.console import Console
from support.answered import packed
from typer.testing import CliRunner

from neotta.cli.app import app
from neotta.cli.compare import render
from neotta.errors import NeottaError
from neotta.evaluate.compare import compare
from neotta.evaluate.frame import frame
from neotta.evaluate.records import Record, Records, content_key
from neotta.report.comparison_page import comparison_page
from neotta.report.formats import comparison_sheet


def run(*words, width=120):
    return CliRunner().invoke(app, ["compare", *map(str, words)], env={"COLUMNS": str(width)})


RIGHT = {"none": 100, "neo": 120, "tent": 80}  # of 200, and one more per seed
DOMAINS = ("clean", "snow/5", "fog/5")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Three methods on three domains with three seeds, and a fourth method that fails."""
    path = tmp_path_factory.mktemp("results") / "results.jsonl"
    records = Records(path)
    for domain in DOMAINS:
        for seed in (1, 2, 3):
            about = {"domain": domain, "domains": [domain], "seed": seed, "model": "m", "data": "d", "samples": 200}
            shared = {**about, "batch_size": 50, "weights": "w", "manifests": [f"{domain} {seed}"], "status": "ok"}
            for method, right in RIGHT.items():
                measured = {"top1": (right + seed) / 2, "ece": 0.5}
                bits = np.arange(200) < right + seed
                answers = packed(bits, np.arange(200) + 200 * seed, domain=domain, batch_size=50, pool=1000)
                made = {**shared, "method": method, "metrics": measured, "answers": answers, "revision": "1"}
                records.append(Record.make({**made, "key": content_key(made)}))
            broken = {**shared, "method": "neo-bn", "status": "failed", "error": "ModelError: no such layers"}
            records.append(Record.make({**broken, "key": content_key(broken)}))
    return path


def test_the_table(command, results):
    done = command("compare", results, width=120)
    assert (done.returncode, done.stderr) == (0, f"Next: neotta compare {results} -o page.html\n")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("top-1 accuracy in % (model m, data d, order iid")
    assert lines[2].split() == ["domain", "none", "neo", "neo-bn", "tent"]
    assert " ".join(lines[3].split()) == "clean 51.0 ± 4.0 61.0 ± 4.0 failed 41.0 ± 4.0"
    assert [line.split()[0] for line in lines[4:7]] == ["snow/5", "fog/5", "average"]
    assert "Difference to none on the same samples" in lines
    assert "neo: +10.0 [+7.8, +12.7] helps on average; helps in 3 of 3 domains." in lines
    assert "tent: -10.0 [-12.7, -7.8] hurts on average; hurts in 3 of 3 domains." in lines
    assert "neo-bn failed on 3 domains (seeds 1, 2, 3): ModelError: no such layers" in lines
    assert "9 runs failed: their values are missing." in lines
    assert "± and [low, high]: 95 % interval over images and seeds (3 of them)." in lines


def test_a_narrow_terminal_gets_other_tables(results):
    enough = [line.split() for line in run(results, width=65).stdout.splitlines()]
    assert ["domain", "none", "neo", "neo-bn", "tent"] in enough
    narrow = run(results, width=34).stdout.splitlines()
    assert [line.split() for line in narrow if line.startswith("domain")][:2] == [
        ["domain", "none", "neo"],
        ["domain", "neo-bn", "tent"],
    ]
    assert max(len(line.rstrip()) for line in narrow) <= 34


def test_the_best_is_bold_and_the_second_underlined(results):
    page = io.StringIO()
    console = Console(file=page, width=120, force_terminal=True, color_system="standard", highlight=False)
    console.print(render(comparison_sheet(compare(frame(Records(results).read()))), 120))
    text = page.getvalue()
    assert "\x1b[1m61.0 ± 4.0\x1b[0m" in text
    assert "\x1b[4m51.0 ± 4.0\x1b[0m" in text
    assert "\x1b[32m+10.0 [+7.8, +12.7] helps\x1b[0m" in text


def test_many_methods_become_rows(tmp_path):
    records = Records(tmp_path / "r.jsonl")
    for method in ("none", "neo", "neo-continual", "tent", "lame", "t3a"):
        made = {"method": method, "domain": "fog/5", "domains": ["fog/5"], "seed": 1, "metrics": {"top1": 50.0}}
        records.append(Record.make({**made, "key": content_key(made)}))
    lines = [line.split() for line in run(records.path, width=40).stdout.splitlines()]
    assert ["method", "fog/5"] in lines
    assert ["neo-continual", "50.0"] in lines


def test_markdown(results):
    lines = run(results, "--format", "markdown").stdout.splitlines()
    assert "| domain | none | neo | neo-bn | tent |" in lines
    assert "| fog/5 | <u>51.0 ± 4.0</u> | **61.0 ± 4.0** | failed | 41.0 ± 4.0 |" in lines
    assert "| fog/5 | +10.0 [+7.8, +12.7] helps | -10.0 [-12.7, -7.8] hurts |" in lines


def test_latex(results, tmp_path):
    assert run(results, "--format", "latex", "--output", tmp_path / "deep" / "table.tex").stdout == ""
    lines = (tmp_path / "deep" / "table.tex").read_text(encoding="utf-8").splitlines()
    assert r"fog/5 & \underline{51.0 $\pm$ 4.0} & \textbf{61.0 $\pm$ 4.0} & failed & 41.0 $\pm$ 4.0 \\" in lines
    assert lines.count(r"\end{tabular}") == lines.count(r"\end{table}") == lines.count(r"\toprule") == 2
    assert lines[2].startswith(r"\caption{top-1 accuracy in \% (model m, ")
    assert lines[lines.index(r"\midrule") - 1].startswith("domain & none & neo & ")
    assert r"fog/5 & +10.0 [+7.8, +12.7] helps & $-$10.0 [$-$12.7, $-$7.8] hurts \\" in lines


def test_csv(results):
    rows = list(csv.DictReader(io.StringIO(run(results, "--format", "csv").stdout)))
    found = {(row["domain"], row["method"]): row for row in rows}
    assert len(rows) == len(found) == 3 * 4 + 3
    assert float(found["fog/5", "neo"]["mean"]) == 61.0
    assert float(found["fog/5", "neo"]["difference"]) == 10
    assert found["fog/5", "tent"]["verdict"] == "hurts"
    assert (found["fog/5", "neo-bn"]["mean"], found["fog/5", "neo-bn"]["failed"]) == ("", "3")


def test_several_formats_go_to_files_beside_each_other(results, tmp_path):
    done = run(results, "--format", "md,latex,csv,parquet", "-o", tmp_path / "out" / "table.tex")
    assert done.stdout == ""
    folder = tmp_path / "out"
    assert sorted(path.name for path in folder.iterdir()) == ["table.csv", "table.md", "table.parquet", "table.tex"]
    assert (folder / "table.md").read_text(encoding="utf-8") == run(results, "--format", "markdown").stdout
    assert r"\toprule" in (folder / "table.tex").read_text(encoding="utf-8")
    lines = list(csv.DictReader((folder / "table.csv").read_text(encoding="utf-8").splitlines()))
    rows = pytest.importorskip("pyarrow.parquet").read_table(folder / "table.parquet").to_pylist()
    assert [{name: "" if value is None else str(value) for name, value in row.items()} for row in rows] == lines
    assert {type(row["mean"]) for row in rows} == {float, type(None)}
    run(results, "--over-time", "--format", "csv,parquet", "-o", folder / "v1.2")
    rows = pytest.importorskip("pyarrow.parquet").read_table(folder / "v1.2.parquet").to_pylist()
    assert {row["method"] for row in rows} == {"none", "neo", "tent"}
    assert (folder / "v1.2.csv").is_file()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--format", "md,csv"], "several formats need a file to go to: give --output NAME"),
        (["--format", "parquet"], "Parquet needs a file to go to"),
        (["--format", "word"], "a comparison has no format 'word'"),
        (["--format", ","], "takes one or more of table, markdown"),
    ],
)
def test_formats_that_cannot_be_had(command, results, words, said):
    done = command("compare", results, *words)
    assert done.returncode == 2
    assert said in done.stderr


def test_the_page_is_whole_and_loads_nothing(results, tmp_path):
    done = run(results, "-o", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert done.stderr == f"Next: open {tmp_path / 'page.html'}\n"
    assert page.startswith("<!DOCTYPE html>")
    assert "http" not in page.replace("http://www.w3.org", "")
    assert "<strong>61.0 ± 4.0</strong>" in page
    assert '<span class="hurts">-10.0 [-12.7, -7.8] hurts</span>' in page
    assert page.count("<svg") == page.count("<figure") == 4
    assert comparison_page(compare(frame(Records(results).read()))) == page


def test_of_very_many_tables_only_the_first_are_drawn(results):
    records = [
        each.model_copy(update={"batch_size": size}) for each in Records(results).read() for size in range(1, 11)
    ]
    page = comparison_page(compare(frame(records)))
    assert page.count("<figure") == 4 * 8
    assert page.count("<table") == 2 * 10
    assert "Figures are drawn of the first 8 of 10 tables." in page


def test_a_table_in_a_file_is_as_wide_as_it_takes(results, tmp_path):
    run(results, "--metric", "ece", "-o", tmp_path / "table.txt", width=20)
    lines = (tmp_path / "table.txt").read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("expected calibration error")
    assert lines[2].split() == ["domain", "none", "neo", "neo-bn", "tent"]
    assert re.sub(r" ± \S+", "", lines[3]).split()[:4] == ["clean", "0.500", "0.500", "failed"]


def test_wrong_questions(command, results, tmp_path):
    for words, message in (
        ([tmp_path / "nothing.jsonl"], "there is no file of records"),
        ([tmp_path], "is a folder"),
        ([results, "--metric", "speed"], "metric is 'speed': choose one of top1"),
        ([results, "--baseline", "sar"], "the baseline 'sar' was not run"),
    ):
        with pytest.raises(NeottaError, match=message):
            raise run(*words).exception
    done = command("compare", results, "--baseline", "sar")
    assert done.returncode == 2
    assert done.stderr == "neotta: the baseline 'sar' was not run: there are 'none', 'neo', 'neo-bn', 'tent'\n"


def test_a_damaged_line_is_told_and_left_out(results, tmp_path):
    lines = results.read_bytes().splitlines(keepends=True)
    (tmp_path / "r.jsonl").write_bytes(b"".join([b"nonsense\n", *lines]))
    done = run(tmp_path / "r.jsonl")
    assert done.exit_code == 0
    assert done.stderr.startswith("neotta: 1 of 37 lines")
    assert done.stderr.count("neotta: ") == 1


def test_records_of_other_revisions_are_shown_and_marked_until_there_are_new_ones(results, tmp_path):
    new = [record for record in Records(results).read() if record.status == "ok"]
    path = tmp_path / "r.jsonl"
    for record in new:
        made_by = {"packages": {"neotta": "0.1.0"}, "metrics": {"top1": 1.0}, "revision": None}
        named = {"key": f"old {record.key}", "question": record.key}
        Records(path).append(record.model_copy(update={**made_by, **named}))
    line = "27 of 27 runs, made by another revision of the method than what is installed "
    line += "(neotta 0.1.0; neo, none, tent)"
    done = run(path)
    assert done.stderr.startswith(f"neotta: older: {line}\n")
    assert "Older: 27 of 27 runs" in done.stdout
    assert f"Older: {line}." in run(path, "--format", "markdown").stdout
    for record in new:
        Records(path).append(record.model_copy(update={"question": record.key}))
    again = run(path)
    assert "older" not in again.stderr
    assert "Older" not in again.stdout
    assert "51.0" in again.stdout
    assert "51.0" not in done.stdout


@pytest.fixture
def of_streams(tmp_path):
    """Records of two kinds of streams, in which the second method is hurt once."""
    path = tmp_path / "streams.jsonl"
    records = Records(path)
    for kind, domain, values in (
        ("iid", "fog/5", (50.0, 58.0)),
        ("1-class", "fog/5", (50.0, 45.5)),
        ("1-class", "snow/5", (40.0, 39.98)),
    ):
        for method, top1 in zip(("none", "neo"), values, strict=True):
            about = {"domain": domain, "domains": [domain], "seed": 1, "model": "m", "data": "d", "samples": 200}
            how = {"order": kind, "batch_size": 16, "status": "ok"}
            made = {**about, **how, "method": method, "metrics": {"top1": top1}, "revision": "1"}
            records.append(Record.make({**made, "key": content_key(made)}))
    return path


def test_harm_by_kind_of_stream(of_streams, tmp_path):
    lines = [line.split() for line in run(of_streams, "--harm", "neo").stdout.splitlines()]
    assert lines[:3] == [["gain", "by", "kind", "of", "stream"], [], ["neo:", "m,", "d,", "severity", "5"]]
    assert ["iid", "1", "+8.0", "+8.0", "+8.0", "0.0", "%", "iid", "on", "fog/5,", "seed", "1"] in lines
    worst = ["1-class", "on", "fog/5,", "seed", "1"]
    assert ["1-class", "2", "-2.3", "-4.3", "-4.5", "50.0", "%", *worst] in lines
    assert ["all", "of", "them", "3", "+1.2", "-4.1", "-4.5", "33.3", "%", *worst] in lines
    some = run(of_streams, "--harm", "neo", "--kinds", "1-class", "--format", "csv").stdout
    assert [row["gain"] for row in csv.DictReader(io.StringIO(some))] == [str(45.5 - 50), str(39.98 - 40)]
    assert "| 1-class | 2 | -2.3 | -4.3 | -4.5 | " in run(of_streams, "--harm", "neo", "--format", "md").stdout
    assert run(of_streams, "--harm", "neo", "--format", "latex,parquet", "--output", tmp_path / "harm").exit_code == 0
    assert "1-class" in (tmp_path / "harm.tex").read_text()
    assert (tmp_path / "harm.parquet").stat().st_size > 0


def test_what_harm_cannot_show(of_streams):
    for words, match in (
        ((of_streams, "--harm", "tent"), "no method 'tent', only neo"),
        ((of_streams, "--harm", "neo", "--kinds", "sorted"), "no kind of stream 'sorted'"),
        ((of_streams, "--harm", "neo", "--over-time"), "--harm is about"),
        ((of_streams, "--kinds", "iid"), "--kinds goes with --harm"),
    ):
        done = run(*words)
        assert isinstance(done.exception, NeottaError)
        assert match in str(done.exception)
