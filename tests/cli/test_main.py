from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer

import neotta
from neotta.adapters.registry import find
from neotta.cli.app import app
from neotta.cli.methods import methods, takes


@pytest.mark.parametrize(
    ("word", "ending"),
    [
        ("--version", (0, f"neotta {neotta.__version__}\n", "")),
        ("demmo", (2, "", "neotta: no such command 'demmo': did you mean 'demo'?\n")),
    ],
)
def test_a_process_of_its_own_does_the_same(command, word, ending):
    process = subprocess.run([sys.executable, "-m", "neotta", word], capture_output=True, text=True)
    for done in (process, command(word)):
        assert (done.returncode, done.stdout, done.stderr) == ending


def test_help_names_the_commands_in_groups(command):
    text = command("--help").stdout
    places = [
        text.index(f" {name} ") for name in ("Start", "demo", "Measure", "run", "Deploy", "predict", "Look up", "data")
    ]
    assert places == sorted(places)


COMMANDS = [[command.callback.__name__] for command in app.registered_commands] + [
    ["data", "info"],
    ["data", "download"],
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_help_has_two_examples_and_short_texts(command, words):
    text = command(*words, "--help", width=100).stdout
    examples = re.findall(r"^ +(neotta .*)", text.partition("Examples:")[2].partition("╭")[0], re.M)
    assert len(examples) == 2
    assert all(line.split()[1 : len(words) + 1] == words for line in examples)
    assert not re.search("--.*<[a-z]", text)
    assert max(map(len, text.splitlines())) <= 100
    for entry in re.split(r"^│ (?=\*? *(?:--|[A-Z]+ ))", text, flags=re.M)[1:]:
        lines = [
            line
            for line in entry.partition("╰")[0].splitlines()
            if not re.match(r"│ +\[(default|env var|required)", line)
        ]
        assert len(lines) <= 2, entry


ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_in_the_docs_have_the_flags_that_are_named(page):
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    code = [*re.findall(r"`(neotta [^`]+)`", text), *re.findall(r"^(?:[A-Z_]+=\S+ )*(neotta .*)", text, re.M)]
    for line in code:
        _, name, *words = line.partition("#")[0].split()
        known = typer.main.get_command(app).commands.get(name)
        if name == "data" and words:
            known = known.commands.get(words[0])
        flags = {flag for word in words if (flag := word.partition("=")[0]).startswith("-") and flag != "-1"}
        assert known is None or flags <= {name for param in known.params for name in param.opts} | {"--help"}, line


def test_methods(command):
    text = command("methods").stdout
    for name in neotta.methods():
        assert name in text


def test_the_comparison_table(command):
    rows = {line.split("  ")[0]: line for line in command("methods", "--table").stdout.splitlines()}
    assert rows["NEO"].count("✓") == 5
    assert rows["TENT"].count("✗") == 4


def test_options_of_a_method(command):
    text = command("methods", "tent").stdout
    assert "0.00025" in text
    assert "episodic" in text


def test_errors_are_one_line(command):
    done = command("methods", "tnet")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "neotta: unknown method 'tnet': did you mean 'tent'?\n"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["data", "infoo"], "no such command 'infoo': did you mean 'info'?"),
        (["methods", "--tabel"], "no such option: --tabel: did you mean '--table'?"),
        (
            ["predict", "m", "d", "--model", "m"],
            "no such option: --model: it is given by its place, neotta predict MODEL DATA",
        ),
        (["run", "--modle", "m"], "no such option: --modle: it is given by its place, neotta run MODEL DATA"),
        (["judge", "digits"], "missing argument 'DATA': it is neotta judge MODEL DATA [-o OUTPUT]"),
        (["export", "digits", "m.onnx"], "missing option '--output' / '-o': it is neotta export MODEL -o OUTPUT"),
        (["judge", "--rule", "neo"], "no such option: --rule: see neotta judge --help"),
        (["check", "--reference", "r"], "no such option: --reference: that is -o FILE"),
    ],
)
def test_mistyped_words_are_one_line(command, words, line):
    done = command(*words)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"neotta: {line}\n")


def test_one_grammar_for_all_commands():
    """The model comes first, then the data; an option has one short form and one help wherever it means the same."""
    commands = typer.main.get_command(app).commands
    for name in ("check", "judge", "predict", "run", "bench", "serve", "export"):
        places = [param.name for param in commands[name].params if param.param_type_name == "argument"]
        assert places == (["model", "data"] if name in ("check", "judge", "predict", "run") else ["model"])
    options = [param for command in commands.values() for param in getattr(command, "params", [])]
    assert all((param.name == "output") == ("-o" in param.opts) for param in options)
    for name in ("allow_code", "device", "labels", "model_option"):
        assert len({(tuple(param.opts), param.help) for param in options if param.name == name}) == 1


def test_other_mistakes_are_one_line(command):
    for words in (["methods", "neo", "more"], ["xyz"], ["corrupt"]):
        done = command(*words)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("neotta: ")
        assert done.stderr.count("\n") == 1


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals to handle")
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_every_command_says_by_what_it_was_ended(command, monkeypatch, interruptible, sent, code):
    def ended(*_, **__):
        os.kill(os.getpid(), sent)
        time.sleep(5)

    monkeypatch.setattr("neotta.data.opening.open_data", ended)
    done = command("data", "info", "digits")
    assert (done.returncode, done.stderr) == (code, "")


def test_too_little_memory_is_one_line(command, monkeypatch):
    def greedy(*_, **__):
        raise MemoryError("Unable to allocate 3.00 PiB")

    monkeypatch.setattr("neotta.data.opening.open_data", greedy)
    done = command("data", "info", "digits")
    assert (done.returncode, done.stderr) == (2, "neotta: not enough memory: Unable to allocate 3.00 PiB\n")


def test_no_words_show_the_help(command):
    done = command()
    assert "demo" in done.stdout + done.stderr
    assert "neotta: " not in done.stderr


def test_a_reader_that_goes_is_no_error():
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-m", "neotta", "methods"], stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert done.stderr == ""


@pytest.mark.parametrize("method", [*neotta.methods(), "neo+lame"])
def test_all_about_a_method(method, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    kind = find(method)
    methods(method, table=False)
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert any(line.startswith(f"Needs: {kind.declaration.needs}") for line in lines)
    for name in kind.Options.model_fields:
        place = lines.index(name)  # whole
        assert "default" in " ".join(lines[place + 1 : place + 3])
        assert kind.Options.model_fields[name].description.split()[0] in " ".join(lines[place + 2 : place + 4])


def test_what_options_take():
    fields = {method: neotta.methods()[method].Options.model_fields for method in neotta.methods()}
    assert takes(fields["tent"]["optimizer"]) == '"adam" or "sgd"'
    assert takes(fields["tent"]["momentum"]) == "number, at least 0, below 1"
    assert takes(fields["sar"]["margin"]) == "number, at least 0 or None"
    assert takes(fields["sar"]["frozen_layers"]) == '"reference" or whole number, at least 0'
    assert takes(fields["sar"]["compat"]) == 'list of ("recovery_keeps_ema" or "reset_keeps_momentum")'
    assert takes(fields["cotta"]["augmentation"]) == "function or None"
    assert takes(fields["cotta"]["seed"]) == f"whole number, at least 0, below {2**63}"
    assert takes(fields["foa"]["source"]) == "tensor or (tensor; tensor) or None"


def test_square_brackets_are_shown(monkeypatch, capsys):
    """They mean style to rich."""
    kind = neotta.methods()["none"]
    monkeypatch.setattr(kind, "__doc__", "The model [bold]as it is[/bold], in [0, 1].\n\n    And more.\n    ")
    for name in (None, "none"):
        methods(name, table=False)
        words = " ".join(capsys.readouterr().out.split())
        assert "[bold]" in words
    assert "in [0, 1]. And more." in words


def test_the_table_of_one_method_and_its_footnotes(command):
    text = command("methods", "--table").stdout
    assert "* CoTTA: 34 is what is counted; the paper prints 35." in text
    assert "* FOA: 3 is what is counted; the paper prints 2." in text
    lines = command("methods", "foa", "--table").stdout.splitlines()
    assert lines[1].split()[0] == "FOA"
    assert lines[1].split()[-1] == "3*"
    assert not any(line.startswith("TENT") for line in lines)


@pytest.mark.parametrize("words", ["--help", "--version", "check --help", "chek", "run --modle x", "completion"])
def test_help_and_typos_start_without_torch(words):
    heavy = "{'torch', 'numpy', 'pandas', 'scipy'}"
    code = f"import sys; from neotta.cli import main\ntry: main()\nfinally: print(sorted({heavy} & set(sys.modules)))"
    completion = {"_NEOTTA_COMPLETE": "complete_bash", "COMP_WORDS": "neotta ju", "COMP_CWORD": "1"}
    environment = {**os.environ, **(completion if words == "completion" else {})}
    done = subprocess.run([sys.executable, "-c", code, *words.split()], capture_output=True, text=True, env=environment)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
    assert words != "completion" or "judge" in done.stdout
