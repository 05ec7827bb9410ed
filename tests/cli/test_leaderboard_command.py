"""`neotta leaderboard`: the command, and what a browser makes of its page."""

from __future__ import annotations

import json
import shlex

import pytest

from neotta.evaluate.records import Records


@pytest.fixture
def two(command, tmp_path):
    """Two people's files: both measured NEO on the same samples, one of them also on others."""
    words = ["run", "--workers", "0", "--no-cache", "--corruptions", "fog,contrast", "--samples", "48", "--seeds", "2"]
    words += ["--batch-sizes", "16"]
    for name, methods in (("ann", "none,neo"), ("ben", "neo,lame,neo-continual:alpha=0.05,debias=true")):
        done = command(*words, "--methods", methods, "-o", f"{name}.jsonl", folder=tmp_path)
        assert done.returncode == 0, done.stderr
    done = command(*words[:5], "fog", "--samples", "32", "--seeds", "1", "-o", "ben.jsonl", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    done = command("leaderboard", "ann.jsonl", "ben.jsonl", "-o", "page.html", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "7 rows in 2 groups: page.html\n"
    return tmp_path


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1280, "dark")])
def test_the_page_in_a_browser(browser, two, width, scheme):
    complaints, asked = [], []
    address = (two / "page.html").as_uri()
    with browser.new_page(viewport={"width": width, "height": 844}, color_scheme=scheme, offline=True) as page:
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(address)
        assert (complaints, asked) == ([], [address])
        assert page.evaluate("document.documentElement.scrollWidth") == width
        first, second = page.locator("table.ranking").all()
        assert first.locator("tr.row").count() == 4
        assert second.locator("tr.row").count() == 3
        settings = page.locator("table.overview td.label small").all_inner_texts()
        assert settings == [
            "severity 5, 48 samples, 2 seeds, online, iid stream, batch size 16",
            "severity 5, 32 samples, 1 seed, online, iid stream, batch size 64",
        ]
        assert first.get_by_text("2 files agree").is_visible()
        for table in (first, second):  # everything can be seen without scrolling sideways
            wide, shown = table.evaluate("table => [table.parentElement.scrollWidth, table.parentElement.clientWidth]")
            assert wide <= shown
        commands = page.locator("tr.more pre")
        assert not any(each.is_visible() for each in commands.all())
        button = first.get_by_role("button", name="Reproduce neo", exact=True)
        button.click()
        assert button.get_attribute("aria-expanded") == "true"
        opened = [each.inner_text() for each in commands.all() if each.is_visible()]
        assert len(opened) == 1
        assert "--methods neo " in opened[0]
        button.click()
        assert not any(each.is_visible() for each in commands.all())
        page.locator("summary").first.click()
        assert page.get_by_text("group 2: other samples or another order").is_visible()
        for heading in page.locator("h2").all():  # models may have long names
            heading.evaluate("heading => { heading.textContent = 'py:path/to/models.py:'.repeat(9); }")
        assert page.evaluate("document.documentElement.scrollWidth") == width
        paper = page.locator("body").evaluate("body => getComputedStyle(body).backgroundColor")
        assert paper == ("rgb(251, 251, 250)" if scheme == "light" else "rgb(18, 20, 23)")


def test_the_command_of_a_row_measures_the_same(browser, command, two):
    with browser.new_page(offline=True) as page:
        page.goto((two / "page.html").as_uri())
        text = page.locator("table.ranking").first.locator("tr.more pre").first.inner_text()
    words = shlex.split(text.strip())
    done = command(*words[1:], "--workers", "0", "--no-cache", folder=two)
    assert done.returncode == 0, done.stderr
    mine = {record["key"]: record["metrics"] for record in Records(two / "check.jsonl").read()}
    theirs = {
        record["key"]: record["metrics"] for name in ("ann", "ben") for record in Records(two / f"{name}.jsonl").read()
    }
    assert len(mine) == 4
    assert mine == {key: theirs[key] for key in mine}


def test_names_from_strangers_do_no_harm(browser, command, two):
    records = Records(two / "evil.jsonl")
    for record in Records(two / "ann.jsonl").read():
        evil = json.loads(json.dumps(record)) | {"data": '<script>alert(1)</script>"; rm', "preset": "<b>paper</b>"}
        evil.pop("sha256", None)
        records.append(evil)
    done = command("leaderboard", "evil.jsonl", "-o", "evil.html", folder=two)
    assert done.returncode == 0, done.stderr
    with browser.new_page(offline=True) as page:
        page.on("dialog", lambda dialog: pytest.fail("a record ran code"))
        page.goto((two / "evil.html").as_uri())
        assert page.locator("main script, td b").count() == 1  # its own
        assert "<b>paper</b>" in page.locator("table.ranking").first.inner_text()


def test_without_records_that_can_be_ranked_the_page_says_so(command, tmp_path):
    Records(tmp_path / "none.jsonl").append({"key": "a", "status": "failed", "method": "neo", "error": "it broke"})
    done = command("leaderboard", "none.jsonl", folder=tmp_path)
    assert done.stdout == "0 rows in 0 groups: leaderboard.html\n"
    assert "No record can be ranked" in (tmp_path / "leaderboard.html").read_text(encoding="utf-8")
    done = command("leaderboard", "nothing.jsonl", folder=tmp_path)
    assert (done.returncode, "there is no file of records" in done.stderr) == (2, True)
