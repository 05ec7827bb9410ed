"""The page of a judgement: its requests, and a session by keys in a real browser."""

from __future__ import annotations

import base64
import http.client
import io
import json
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image

import neotta
from neotta.data.handwritten import digits
from neotta.evaluate.judgement import NONE, SKIP, Judgement
from neotta.report.judge_page import JudgePage, JudgeServer

HOSTILE = "<script>document.title='hacked'</script>"


def small(count=12, **more):
    answers = {f"{place}.png": ("plain", "rule") for place in range(count)} | {"same.png": ("plain", "plain")}
    return Judgement(answers, ["neo"], lambda name: np.zeros((8, 8, 3), np.uint8), **more)


def posted(page, path, **content):
    reply = page.reply("POST", path, json.dumps(content).encode())
    return reply.status, json.loads(reply.body)


def test_the_state_tells_all_but_whose_a_candidate_is():
    judged = small()
    state = json.loads(JudgePage(judged).reply("GET", "state").body)
    assert (state["image"], state["images"], state["finished"], state["line"]) == (0, 12, False, None)
    assert sorted(state["candidates"]) == ["plain", "rule"]
    firsts = set()
    for _ in range(12):
        firsts.add(judged.candidates(judged.next)[0])
        judged.answer(judged.next, SKIP)
    assert firsts == {"plain", "rule"}


def test_answers_of_two_pages_are_not_counted_twice():
    said = []
    page = JudgePage(small(), lambda: said.append(1))
    assert posted(page, "answer", image=0, choice="none")[1]["image"] == 1
    assert posted(page, "answer", image=0, choice="skip")[1]["image"] == 1, "the other page was slower"
    assert posted(page, "answer", image=1, choice=0)[1]["image"] == 2
    assert posted(page, "undo", image=0)[1]["image"] == 2
    assert posted(page, "undo", image=1)[1]["image"] == 1
    assert page.judgement.given == [NONE]
    assert len(said) == 3


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"image": 0}', b'{"image": 0, "choice": 9}', b"\xff"])
def test_what_is_no_answer_changes_nothing(body):
    page = JudgePage(small())
    assert page.reply("POST", "answer", body).status == 400
    assert page.judgement.given == []


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "image/99"), ("GET", "image/x"), ("GET", "nothing"), ("PUT", "state"), ("GET", "answer")],
)
def test_other_pages_are_not_there(method, path):
    assert JudgePage(small()).reply(method, path).status == 404


def test_an_answer_that_cannot_be_kept_is_reported(tmp_path):
    page = JudgePage(small(path=tmp_path / "folder" / "answers.jsonl"))
    (tmp_path / "folder").write_text("a file")
    status, content = posted(page, "answer", image=0, choice=0)
    assert status == 500
    assert "cannot be written" in content["error"]
    assert page.judgement.given == []


def test_only_who_knows_the_key_sees_the_page():
    with JudgeServer(JudgePage(small())) as server:
        parts = urlsplit(server.address)
        assert (parts.hostname, server.server_address[0]) == ("127.0.0.1", "127.0.0.1")

        def ask(method, path, body=None, **headers):
            connection = http.client.HTTPConnection("127.0.0.1", parts.port, timeout=10)
            connection.request(method, path, body, headers)
            reply = connection.getresponse()
            reply.read()
            connection.close()
            return reply

        page = ask("GET", parts.path)
        assert page.status == 200
        assert "default-src 'none'" in page.headers["Content-Security-Policy"]
        assert page.headers["Referrer-Policy"] == "no-referrer"
        assert ask("GET", f"{parts.path}image/0").headers["Content-Type"] == "image/png"
        for path in ("/", "/state", "/wrong/state", f"{parts.path[:-3]}/state"):
            assert ask("GET", path).status == 403
        assert ask("POST", f"{parts.path}answer", b"x" * 20_000).status == 413


@pytest.fixture
def page(browser):
    page = browser.new_page(viewport={"width": 1200, "height": 844})
    page.set_default_timeout(20_000)
    page.errors = []
    page.on("console", lambda said: page.errors.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    yield page
    page.close()


def answered(page, count):
    page.locator("#progress").get_by_text(f"{count} answered of").wait_for()


@pytest.fixture(scope="module")
def answers():
    """What a model of MNIST and two rules say to the digits of other people, as if nobody knew these."""
    judged = neotta.judge("mnist", "digits-all")
    return judged


def unlabelled(answers, **more):
    return Judgement(answers.answers, answers.rules, answers.image, lines=answers.lines, **more)


def seen(page, number):
    """The number of the digit on the page, found by its picture."""
    source = page.evaluate(
        """async (number) => { const reply = await fetch("image/" + number);
        const bytes = new Uint8Array(await reply.arrayBuffer()); return btoa(String.fromCharCode(...bytes)) }""",
        number,
    )
    picture = np.asarray(Image.open(io.BytesIO(base64.b64decode(source))).convert("RGB"), np.int64)
    differences = np.abs(digits("all").images.astype(np.int64) - picture).reshape(1797, -1).sum(axis=1)
    assert differences.min() == 0, "the picture is the digit itself"
    return str(digits("all").labels[differences.argmin()])


@pytest.mark.slow
def test_a_session_by_keys_on_the_digits_ends_with_the_line_to_write(page, answers):
    judged = unlabelled(answers)
    with JudgeServer(JudgePage(judged)) as server:
        page.goto(server.address)
        count = 0
        while not judged.finished:
            answered(page, count)
            names = page.locator("button.candidate").evaluate_all(
                "all => all.map((each) => each.lastChild.textContent)"
            )
            right = seen(page, count)
            page.keyboard.press(str(names.index(right) + 1) if right in names else "0")
            count += 1
        answered(page, count)
        assert count <= 30
        page.get_by_text('model = neotta.adapt(model, "neo")').wait_for()
        assert "neo helps" in page.locator("#verdict").inner_text()
        truth = dict(zip(judged.rules, (gain.low for gain in answers.gains), strict=True))
        assert all(gain.low <= truth[gain.rule] <= gain.high for gain in judged.gains)
        page.keyboard.press("z")
        answered(page, count - 1)
        page.keyboard.press("s")
        answered(page, count)
        assert judged.given[-1] == SKIP
        assert page.errors == []


@pytest.mark.slow
def test_after_a_verdict_more_answers_can_be_given(page):
    judged = small(at_most=1)
    with JudgeServer(JudgePage(judged)) as server:
        page.goto(server.address)
        page.get_by_role("button", name="none of these").click()
        page.get_by_text("Use none until you can tell").wait_for()
        page.keyboard.press("1")
        page.keyboard.press("m")
        page.keyboard.press("1")
        answered(page, 2)
        assert len(judged.given) == 2


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1200])
def test_it_fits_any_screen_and_shows_names_as_text(browser, scheme, width):
    answers = {"a.png": ("plain " * 8, HOSTILE), "b.png": ("plain " * 8, HOSTILE)}
    judged = Judgement(answers, ["neo"], lambda name: np.zeros((900, 1200, 3), np.uint8), notes=[HOSTILE])
    page = browser.new_page(viewport={"width": width, "height": 844}, color_scheme=scheme)
    page.set_default_timeout(20_000)
    with JudgeServer(JudgePage(judged)) as server:
        page.goto(server.address)
        answered(page, 0)
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert page.title() == "neotta judge"
        assert page.locator("button.candidate").count() == 2
        page.wait_for_selector("#picture[src^=blob]")
        box = page.locator("#picture").bounding_box()
        assert box["width"] > 0.8 * min(width, 740) - 60
        assert page.locator("#others").bounding_box()["y"] < 844, "everything to press is on the screen"
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, background[4:-1].split(","))) < 200) == (scheme == "dark")
    page.close()


@pytest.mark.slow
def test_two_pages_share_a_session_and_say_when_it_has_ended(browser):
    judged = small()
    first, second = (browser.new_page() for _ in range(2))
    with JudgeServer(JudgePage(judged)) as server:
        for page in (first, second):
            page.set_default_timeout(20_000)
            page.goto(server.address)
            answered(page, 0)
        first.keyboard.press("1")
        answered(first, 1)
        second.keyboard.press("0")
        answered(second, 1)
        assert len(judged.given) == 1
        second.keyboard.press("0")
        answered(second, 2)
    second.keyboard.press("0")
    second.get_by_text("start it again").wait_for()
    assert len(judged.given) == 2
    first.close()
    second.close()
