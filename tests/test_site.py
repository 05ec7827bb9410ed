"""The documentation site builds strictly, its notebooks run, and it works in a browser."""

from __future__ import annotations

import functools
import http.server
import importlib
import importlib.util
import inspect
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
import yaml
from support.registered import forget_afterwards

import neotta

ROOT = Path(__file__).parent.parent
SITE = ROOT / "docs" / "_site"
pytest.importorskip("sphinx", reason="the site needs pip install 'neotta[docs]'")


@pytest.fixture(scope="module", autouse=True)
def modules_of_the_site():
    sys.path.insert(0, str(ROOT / "docs" / "_site"))
    yield
    sys.path.remove(str(ROOT / "docs" / "_site"))


def pages():
    spec = importlib.util.spec_from_file_location("site_pages", ROOT / "docs" / "_site" / "pages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("method", sorted(neotta.methods()))
def test_the_example_of_each_method_runs(method):
    text = pages().method_page(method, neotta.methods()[method], None)
    block = re.search(r"```python\n(.*?)```", text, re.S)[1]
    names = {}
    exec(compile(block, method, "exec"), names)
    assert len(names["logits"]) == 8


def test_every_method_has_its_paper_and_the_licence_of_its_code_where_it_is_known():
    pages()
    from method_pages import PUBLISHED_CODE, sources_page

    text = sources_page()
    kinds = {name: kind for name, kind in neotta.methods().items() if kind.__module__.startswith("neotta.")}
    for name, kind in kinds.items():
        rows = re.findall(rf"^\| \[[^]]*\]\({name}\.md\) .*$", text, re.M)
        assert len(rows) == (name != "none"), name
        assert all(kind.paper in row or name == "neo-stream" for row in rows)
        assert all(("not known" in row) is (name not in PUBLISHED_CODE and name != "neo-stream") for row in rows)
    assert kinds.keys() >= PUBLISHED_CODE.keys(), "of methods that are gone"


def test_the_page_of_a_method_shows_what_neotta_compare_prints(tmp_path):
    from measured import measured

    from neotta.evaluate.bench import Bench
    from neotta.evaluate.compare import AVERAGE, compare
    from neotta.evaluate.frame import frame
    from neotta.evaluate.plan import Plan
    from neotta.evaluate.records import Records, write_records
    from neotta.evaluate.sweep import sweep

    plan = Plan.make(
        {"methods": ["none", "neo"], "corruptions": ["fog", "contrast"], "severities": [3], "samples": [64]}
    )
    sweep(Bench(plan, cache=tmp_path / "cache"), plan, Records(tmp_path / "results.jsonl"))
    records = Records(tmp_path / "results.jsonl").read()
    write_records(records, tmp_path / "records.parquet")
    table = measured(tmp_path / "records.parquet")
    assert list(table) == ["neo"], "the plain model is what the others are compared with"
    compared = compare(frame(records))
    averages = compared[compared["domain"] == AVERAGE].set_index("method")
    gain = averages.loc["neo"]
    assert f"| 2, severity 3 | {averages.loc['none', 'mean']:.1f} |" in table["neo"][2]
    assert f"| {gain.difference:+.1f} [" in table["neo"][2]
    assert table["neo"][2].endswith(f"| {gain.verdict} |")
    assert "\n".join(table["neo"]) in pages().method_page("neo", neotta.methods()["neo"], table["neo"])


def test_a_method_without_records_says_so(tmp_path):
    from measured import measured

    assert measured(tmp_path / "missing.parquet") == {}
    assert "Not measured yet" in pages().method_page("sar", neotta.methods()["sar"], None)


EXAMPLES = re.findall(r"^## (.+?)\n\n```python\n(.*?)```", (SITE / "examples.md").read_text(), re.M | re.S)
START = re.search(r"```python\n(.*?)```", (SITE / "examples.md").read_text(), re.S)[1]


@pytest.mark.parametrize(("names", "code"), EXAMPLES, ids=[names.split()[0] for names, _ in EXAMPLES])
def test_the_examples_of_the_reference_run(names, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    forget_afterwards(monkeypatch)
    torch.manual_seed(0)
    known = {}
    exec(compile(START, "the start of examples.md", "exec"), known)
    exec(compile(code, names, "exec"), known)


def test_every_public_name_has_an_example():
    module = pages()
    shown, missing = {}, []
    for package in module.PACKAGES:
        found = importlib.import_module(package)
        for name in module.public_names(found):
            thing = getattr(found, name)
            first = shown.setdefault(id(thing), package)
            error = inspect.isclass(thing) and issubclass(thing, BaseException)
            if first == package and not (error or module.is_data(thing)):
                missing += [f"{package}.{name}"] if f"{package}.{name}" not in module.examples() else []
    assert missing == []


def test_the_reference_begins_with_adapt():
    text = pages().reference_page("neotta", {})
    assert re.search(r"^### (\w+)", text, re.M)[1] == "adapt"
    assert START in text
    for name in neotta.__all__:
        assert name.startswith("_") or f"### {name}\n" in text


def test_a_public_name_without_a_docstring_is_refused(monkeypatch):
    monkeypatch.setattr(neotta, "__all__", [*neotta.__all__, "undocumented"])
    monkeypatch.setattr(neotta, "undocumented", lambda: None, raising=False)
    with pytest.raises(ValueError, match=r"neotta\.undocumented has no docstring"):
        pages().reference_page("neotta", {})


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", str(ROOT / "docs"), str(folder)]
    environment = {**os.environ, "PATH": os.defpath}  # where neither neotta nor sphinx-build is
    built = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment)
    assert built.returncode == 0, built.stderr[-4000:]
    return folder


@pytest.mark.slow
def test_every_page_is_there(site):
    for page in ("index", "will-it-help", "tutorials/your-model", "ideas/streams", "generated/methods/neo-stream"):
        assert (site / f"{page}.html").is_file(), page
    tutorials = [page.read_text() for page in (site / "tutorials").glob("*.html")]
    assert not any(sys.prefix in page for page in tutorials), "a warning names a path of this machine"
    assert "<img" in (site / "tutorials" / "your-model.html").read_text(), "the notebooks draw"
    assert "neotta.adapt" in (site / "generated" / "reference" / "neotta.html").read_text()


@pytest.fixture(scope="module")
def address(site):
    """The site on loopback: search reads other pages, which a browser allows only over HTTP."""
    handler = functools.partial(QuietHandler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1400, "dark")])
def test_it_works_in_a_browser(address, browser, width, scheme):
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page.set_default_timeout(120_000)
    errors = []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    for name in (
        "index.html",
        "will-it-help.html",
        "results/README.html",
        "tutorials/your-model.html",
        "generated/reference/neotta.html",
    ):
        page.goto(f"{address}/{name}")
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), f"{name} is too wide"
    page.goto(f"{address}/search.html?q=one+class")
    page.wait_for_selector("#search-results li")
    assert page.locator("#search-results li").count() > 0
    assert not errors
    page.close()


def test_the_hooks_are_the_quick_checks_of_ci():
    hooks = re.findall(r"entry: (.+)", (ROOT / ".pre-commit-config.yaml").read_text())
    ci = (ROOT / ".ci" / "run").read_text()
    assert hooks
    for hook in hooks:
        assert re.search(rf"^{re.escape(hook)}( \.)?$", ci, re.M), f"{hook} is not in .ci/run"


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda path: path.name)
def test_workflows_and_templates_are_valid_and_name_files_that_exist(path):
    content = yaml.safe_load(path.read_text())
    assert content
    steps = [step for job in content.get("jobs", {}).values() for step in job["steps"]]
    assert all(("run" in step) != ("uses" in step) for step in steps)
    for command in (step["run"] for step in steps if "run" in step):
        for name in re.findall(r"(?:scripts/\S+|\.ci/\S+|constraints\.txt)", command):
            assert (ROOT / name).is_file(), command


def test_the_workflow_tests_every_supported_python():
    content = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text())
    assert content["jobs"]["tests"]["strategy"]["matrix"]["python"] == ["3.10", "3.11", "3.12", "3.13", "3.14"]


def test_every_place_states_the_same_version():
    version = neotta.__version__
    assert f"version: {version}" in (ROOT / "CITATION.cff").read_text()
    assert re.search(rf"^## {re.escape(version)}\b", (ROOT / "CHANGELOG.md").read_text(), re.M)
