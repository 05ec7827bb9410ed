"""Judging the answers of a camera: on the dashboard, and by requests."""

from __future__ import annotations

import json

import numpy as np
import pytest
from support.serving import pictures, serving, small_engine, wait_until

from neotta.cli.serve import open_engine
from neotta.data.handwritten import digits
from neotta.deploy.serve.history import History
from neotta.deploy.serve.judging import DISAGREEMENTS, LEFT, Shown

KEY = "a key of sixteen characters"


def said(client, part="state", camera="gate"):
    return client.get(f"/judgements/{camera}?part={part}")


def shown(disagreements, agreements=0):
    """A camera with so many answers that differ, after some that do not."""
    made = Shown()
    for number in range(agreements + disagreements):
        made.add("plain", "plain" if number < agreements else "adapted", f"picture {number}".encode())
    return made


def state(camera, method="GET", part="state", body=b""):
    return json.loads(camera.reply(method, part, body, "neo", lambda: None).body)


def test_only_the_newest_disagreements_and_the_images_since_are_judged():
    camera = shown(DISAGREEMENTS + 5, agreements=10)
    assert camera.measured() is None
    assert state(camera)["images"] == DISAGREEMENTS
    for _ in range(3):
        now = state(camera)
        state(camera, "POST", "answer", b'{"image": %d, "choice": "none"}' % now["image"])
    found = camera.measured()
    assert (found["answers"], found["images"]) == (3, DISAGREEMENTS), "the last one dropped was the 15th image"
    assert found["low"] < 0 < found["high"]
    few = shown(4, agreements=16)
    state(few)
    assert "20 images" in " ".join(state(few)["sentences"])


def test_what_arrives_later_does_not_change_a_judgement_and_who_begins_joins_it_until_it_is_over():
    camera = shown(5)
    assert state(camera)["image"] == 0
    state(camera, "POST", "answer", b'{"image": 0, "choice": 0}')
    camera.add("plain", "adapted", b"later")
    assert (state(camera)["image"], state(camera)["images"]) == (1, 5)
    assert camera.reply("GET", "image/0", b"", "neo", lambda: None).body.startswith(b"picture")
    joined = state(camera, "POST", "begin")
    assert (joined["image"], joined["images"]) == (1, 5), "a second click drops no answers"
    for image in range(1, 5):
        state(camera, "POST", "answer", b'{"image": %d, "choice": "none"}' % image)
    assert state(camera)["finished"]
    begun = state(camera, "POST", "begin")
    assert (begun["image"], begun["images"]) == (0, 6)
    state(camera, "POST", "answer", b'{"image": 0, "choice": "none"}')
    camera._used -= LEFT + 1
    assert state(camera, "POST", "begin")["image"] == 0, "one that was left goes on after a day"


def test_a_request_that_only_reads_begins_nothing_again():
    camera = shown(1)
    state(camera, "POST", "answer", b'{"image": 0, "choice": "none"}')
    assert state(camera)["finished"]
    assert camera.reply("GET", "begin", b"", "neo", lambda: None).status == 404
    assert state(camera)["finished"]


def test_what_was_measured_is_kept_at_each_answer_and_survives_a_restart_and_a_page_of_before(tmp_path):
    def judged(client):
        return client.get("/streams/gate")[1]["judged"]

    def answer(client, image):
        return client.post("/judgements/gate?part=answer", {"image": image, "choice": "none"})[0]

    with serving(folder=tmp_path, pictures=True) as client:
        client.infer(pictures(1), stream="gate")
        for index in range(8):
            client.service.shown["gate"].add("plain", "adapted", b"picture %d" % index)
        assert judged(client) is None
        assert [answer(client, image) for image in range(3)] == [200] * 3
        before = judged(client)
        assert (before["answers"], before["images"]) == (3, 9)
    with serving(folder=tmp_path, pictures=True) as client:
        assert judged(client) == before
        client.infer(pictures(1), stream="gate")
        client.service.shown["gate"].add("plain", "adapted", b"new")
        assert (answer(client, 3), judged(client)) == (200, before), "a page of before the restart changes nothing"
        assert (answer(client, 0), judged(client)["answers"]) == (200, 1)
        client.ask("DELETE", "/streams/gate")
    assert History(tmp_path).judged == {}


def test_without_pictures_there_is_nothing_to_judge():
    with serving(small_engine()) as client:
        client.infer(pictures(4), stream="gate")
        status, answer = said(client)
        assert status == 404
        assert "pictures = true" in answer["error"]
        assert said(client, camera="nobody")[0] == 404


def test_the_key_is_needed_and_a_camera_that_is_forgotten_is_gone():
    with serving(small_engine("neo"), pictures=True, key=KEY) as client:
        for image in pictures(6):
            client.infer(image[None], stream="gate")
        assert said(client)[0] == 200
        client.key = None
        assert said(client)[0] == 401
        assert client.post("/judgements/gate?part=answer", {"image": 0, "choice": 0})[0] == 401
        status, headers, page = client.ask("GET", "/judge/gate")
        assert status == 200
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert b"gate" not in page
        client.key = KEY
        assert client.ask("DELETE", "/streams/gate")[0] == 200
        assert said(client)[0] == 404
        client.infer(pictures(1), stream="gate")
        assert (said(client)[0], client.service.shown["gate"]._count) == (200, 1)  # a new one, without its pictures


@pytest.mark.slow
def test_an_operator_judges_a_camera_by_keys_and_its_card_shows_the_gain(browser):
    data, count = digits("all"), 400
    ready = ((data.images[:count].transpose(0, 3, 1, 2) / 255 - 0.5) / 0.5).astype(np.float32)
    labels = {}
    with serving(open_engine("mnist", rule="neo"), name="digits", pictures=True, key=KEY, history=0.3) as client:
        for image in ready:
            client.infer(image[None], name="digits", outputs=["class"], stream="yard/1")
        camera = client.service.shown["yard/1"]
        for number, _, _, picture in camera._disagreements:
            labels[picture] = str(data.labels[number - 1])
        page = browser.new_page(viewport={"width": 1200, "height": 844})
        page.set_default_timeout(20_000)
        errors = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(f"http://127.0.0.1:{client.port}/camera/yard%2F1")
        page.locator("#key").fill(KEY)
        page.keyboard.press("Enter")
        page.get_by_role("button", name="Judge 30 answers").click()
        page.locator("#progress").get_by_text("0 answered of").wait_for()
        judgement = camera._page.judgement
        while not judgement.finished:
            given = len(judgement.given)
            page.locator("#progress").get_by_text(f"{given} answered of").wait_for()
            names = page.locator("button.candidate").evaluate_all(
                "all => all.map((each) => each.lastChild.textContent)"
            )
            right = labels[judgement.image(judgement.next)]
            page.keyboard.press(str(names.index(right) + 1) if right in names else "0")
            wait_until(lambda given=given: len(judgement.given) > given)
        page.locator("#verdict").get_by_text("neo helps").wait_for()
        page.get_by_role("link", name="All cameras").click()
        page.locator(".tile .accuracy").get_by_text("judged, helps").wait_for()
        page.locator(".tile").get_by_role("link").click()
        page.locator("#facts").get_by_text("Gain, measured").wait_for()
        assert not errors
        page.close()
