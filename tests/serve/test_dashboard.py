"""The dashboard in a real browser, against a real server with the digits model."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sqlite3
import subprocess
from urllib.parse import quote, unquote

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file
from support.serving import Client, serving, wait_until

from neotta.cli.serve import open_engine
from neotta.data.corruptions import corrupt
from neotta.data.handwritten import digits

KEY = "a key of sixteen characters"
HOSTILE = ["<b>bold</b>", "a/b", "<script>document.title='hacked'</script>", "50%?x=1&y#z", "カメラ 🎥", "x" * 100]
INTERVAL = re.compile(r"\d+\s%\s\(\d+ to \d+\s%\)")


@pytest.fixture(scope="module")
def frames():
    """Preprocessed images, (n, 3, 32, 32), by what a camera may send."""
    dataset = digits("test")
    images = np.stack([dataset.read(index) for index in range(0, 600, 2)])
    bright = np.stack([corrupt(image, "brightness", 3, seed=index) for index, image in enumerate(images)])
    kinds = {"clear": images, "bright": bright, "stuck": np.repeat(images[:1], 128, 0)}
    return {kind: _preprocessed(each) for kind, each in kinds.items()}


def _preprocessed(images):
    return ((images.transpose(0, 3, 1, 2) / 255 - 0.5) / 0.5).astype(np.float32)


@pytest.fixture
def page(browser):
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.set_default_timeout(20_000)
    page.errors = []
    page.on("console", lambda said: page.errors.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    yield page
    page.close()


def dashboard(folder=None, **settings):
    """A server whose histories grow quickly."""
    return serving(
        open_engine("digits", folder=folder), folder=folder, **{"name": "digits", "history": 0.3, **settings}
    )


def send(client, stream, images, size=32):
    for start in range(0, len(images), size):
        client.infer(images[start : start + size], name="digits", outputs=["class"], stream=stream)


def address(client, path="/"):
    return f"http://127.0.0.1:{client.port}{path}"


def camera(client, stream):
    return client.get(f"/streams/{quote(stream, safe='')}")[1]


def tile(page, stream):
    return page.locator(".tile").filter(has=page.locator(".name").get_by_text(stream, exact=True))


def names(page):
    return page.locator(".tile:visible .name").all_text_contents()


def act(page, label):
    page.locator("#actions").get_by_role("button", name=label, exact=True).click()
    page.locator("#confirm").click()


def damage(folder, stream):
    """Flip a bit of a state on disk."""
    (path,) = folder.glob("*/streams.sqlite")
    database = sqlite3.connect(path)
    ((content,),) = database.execute("SELECT state FROM streams WHERE id = ?", (json.dumps(stream),))
    flipped = bytes([content[0] ^ 1]) + content[1:]
    database.execute("UPDATE streams SET state = ? WHERE id = ?", (flipped, json.dumps(stream)))
    database.commit()
    database.close()


@pytest.mark.slow
def test_tiles_are_sorted_by_trouble_and_say_what_is_wrong(page, frames, tmp_path):
    with dashboard(tmp_path) as client:
        send(client, "z-damaged", frames["clear"][:32])
    damage(tmp_path, "z-damaged")
    with dashboard(tmp_path) as client:
        send(client, "fine", frames["bright"])
        send(client, "a-few", frames["clear"][:8])
        send(client, "y-stuck", frames["stuck"])
        assert camera(client, "z-damaged")["status"] == "quarantined"
        page.goto(address(client))
        tile(page, "y-stuck").get_by_text("The frames are all alike").wait_for()
        assert names(page) == ["z-damaged", "y-stuck", "a-few", "fine"]
        assert "✕ quarantined" in tile(page, "z-damaged").inner_text()
        stuck = tile(page, "y-stuck").inner_text()
        assert "▲ check · ○ idle" in stuck
        assert "not known" in stuck, "one picture says nothing of accuracy"
        assert "not known" in tile(page, "a-few").inner_text()
        assert "● adapting" in tile(page, "fine").inner_text()
        assert INTERVAL.search(tile(page, "fine").inner_text()), "the accuracy has its interval"
        tile(page, "fine").locator(".spark svg").wait_for()
        legend = page.locator("#legend").inner_text()
        assert all(each in legend for each in ("estimated accuracy", "its interval", "share of changed answers"))
        assert page.title() == "(2) cameras · neotta serve"

        page.get_by_role("button", name="▲ check 1").click()
        assert names(page) == ["y-stuck"]
        page.get_by_role("button", name="All 4").click()
        page.locator("#search").fill("all alike")
        assert names(page) == ["y-stuck"]
        page.locator("#search").fill("nothing like it")
        page.get_by_text("No camera matches.").wait_for()
        page.locator("#search").fill("")

        send(client, "fine", frames["stuck"].repeat(4, 0))  # live, and in its new place
        tile(page, "fine").get_by_text("▲ check").wait_for()
        assert names(page) == ["z-damaged", "fine", "y-stuck", "a-few"]
        assert page.errors == []


def test_a_damaged_camera_says_so_and_is_healed_by_a_reset(page, frames, tmp_path):
    with dashboard(tmp_path) as client:
        send(client, "gate", frames["stuck"][:32])
    damage(tmp_path, "gate")
    with dashboard(tmp_path) as client:
        page.goto(address(client, "/camera/gate"))
        page.locator("#words").get_by_text("a reset heals it").wait_for()
        page.locator("#subtracted").get_by_text("Not known").wait_for()
        page.get_by_role("button", name="Download state").click()
        page.locator("#said").get_by_text("Not done: stream 'gate' is quarantined").wait_for()
        act(page, "Reset")
        page.locator("#badge").get_by_text("starting").wait_for()
        send(client, "gate", frames["stuck"][:32])
        page.locator("#badge").get_by_text("▲ check · ○ idle").wait_for()
        page.reload()
        page.locator("#subtracted").get_by_text("No shift.").wait_for()
        assert camera(client, "gate")["health"]["samples"] == 32
        assert all("404" in error for error in page.errors)


def test_a_camera_has_an_address_of_its_own(page, frames):
    with dashboard() as client:
        for stream in HOSTILE:
            send(client, stream, frames["clear"][:4])
        page.goto(address(client))
        for stream in HOSTILE:
            tile(page, stream).locator("a").click()
            assert unquote(page.url) == address(client, f"/camera/{stream}")
            assert page.url.count("/") == 4
            for again in (False, True):
                if again:
                    page.reload()
                page.locator("#facts dt").first.wait_for()
                assert page.locator("#name").text_content() == stream
                assert page.title() == f"{stream} · neotta serve"
            page.go_back()
            tile(page, stream).wait_for()
            assert page.url == address(client)
        assert page.locator("b, script:not([src])").count() == 0

        page.goto(address(client, "/camera/not%20here"))
        page.get_by_text("does not know this camera").wait_for()
        send(client, "not here", frames["clear"][:4])
        page.locator("#facts").get_by_text("Samples learnt from").wait_for()
        assert all("404" in error for error in page.errors)


def test_actions_do_what_they_say(page, frames, tmp_path):
    with dashboard() as client:
        send(client, "gate", frames["bright"])
        send(client, "other", frames["clear"][:32])
        samples = camera(client, "gate")["health"]["samples"]
        page.goto(address(client, "/camera/gate"))
        page.locator("#actions").get_by_role("button", name="Freeze", exact=True).click()
        assert "learns nothing" in page.locator("#consequence").inner_text()
        page.get_by_role("button", name="Cancel").click()
        assert camera(client, "gate")["status"] == "adapting"
        act(page, "Freeze")
        page.locator("#said").get_by_text("Frozen.").wait_for()
        assert "frozen" in page.locator("#badge").inner_text()
        send(client, "gate", frames["clear"][:32])
        assert camera(client, "gate")["health"]["samples"] == samples
        act(page, "Unfreeze")
        page.locator("#badge").get_by_text("adapting").wait_for()

        act(page, "Reset")
        page.locator("#said").get_by_text("Reset").wait_for()
        assert camera(client, "gate")["health"] is None
        page.locator("#subtracted").get_by_text("No shift.").wait_for()
        *_, before_reset = snapshots = camera(client, "gate")["snapshots"]
        send(client, "gate", frames["clear"][:32])
        act(page, "Reset")
        wait_until(lambda: page.locator("#snapshots option").count() == len(snapshots) + 1)
        page.locator("#snapshots").select_option(str(before_reset))
        act(page, "Roll back")
        page.locator("#said").get_by_text("Rolled back to").wait_for()
        assert camera(client, "gate")["health"]["samples"] == samples
        page.locator("#subtracted tbody tr").first.wait_for()
        subtracted = {each["label"]: each["offset"] for each in camera(client, "gate")["offset"]}
        rows = [row.split() for row in page.locator("#subtracted tbody tr").all_inner_texts()]
        assert rows == [[label, f"{offset:.2f}"] for label, offset in subtracted.items()]

        with page.expect_download() as waiting:
            page.get_by_role("button", name="Download state").click()
        waiting.value.save_as(tmp_path / waiting.value.suggested_filename)
        assert load_file(tmp_path / "gate.safetensors")
        act(page, "Forget")
        page.get_by_text("does not know this camera").wait_for()
        wait_until(lambda: [each["id"] for each in client.get("/streams")[1]["streams"]] == ["other"])
        page.get_by_role("link", name="All cameras").click()
        wait_until(lambda: names(page) == ["other"])
        assert client.ask("DELETE", "/streams/other")[0] == 200
        page.get_by_text("No camera has sent an image yet").wait_for()
        assert all("404" in error for error in page.errors)


def test_plots_have_axes_legends_and_values(page, frames):
    with dashboard() as client:
        for number, kind in enumerate(("stuck", "clear", "bright")):
            send(client, "gate", frames[kind])
            wait_until(lambda number=number: len(camera(client, "gate")["history"]) > number)
        page.goto(address(client, "/camera/gate"))
        page.locator("#plots figure").nth(3).wait_for()
        texts = page.locator("#plots figure").all_inner_texts()
        for text, title, unit, legend in zip(
            texts,
            ("Estimated accuracy", "Changed answers", "Shift", "Most frequent class"),
            ("% of the last answers", "% of all answers", "× spread of the logits", "% of the samples"),
            ("interval", "differ from the plain model", "length of what is subtracted", "half"),
            strict=True,
        ):
            assert all(each in text for each in (title, unit, legend, "time", "last: "))
        assert INTERVAL.search(texts[0])
        assert "sign to look at" in page.locator("#marks").inner_text()
        page.get_by_text("What happened, in words").click()
        assert "frames all alike" in page.locator("#happened li").last.inner_text()
        plot = page.get_by_role("slider", name="Most frequent class over time")
        plot.focus()
        page.keyboard.press("Home")
        first = camera(client, "gate")["history"][0]
        assert plot.get_attribute("aria-valuetext").endswith(f"{first['top_share'] * 100:.0f}\u00a0%")
        assert page.errors == []


def test_nothing_overflows_on_a_phone(page, frames):
    page.set_viewport_size({"width": 390, "height": 844})
    with dashboard() as client:
        for stream in HOSTILE:
            send(client, stream, frames["bright"][:64])
        for path in ("/", *(f"/camera/{quote(stream, safe='')}" for stream in HOSTILE)):
            page.goto(address(client, path))
            page.locator(".tile:visible, #plots figure").nth(3).wait_for()
            for scheme in ("light", "dark"):
                page.emulate_media(color_scheme=scheme)
                assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path


def test_the_first_image_is_sent_as_the_empty_page_says(page, frames, tmp_path):
    if shutil.which("curl") is None:
        pytest.skip("needs curl")
    Image.fromarray(digits("test").read(0)).save(tmp_path / "image.jpg")
    with dashboard(pictures=True) as client:
        page.goto(address(client))
        page.locator("#empty .curl", has_text="curl").wait_for()
        line = page.locator("#empty .curl").inner_text()
        subprocess.run(["curl", "--silent", "--fail", *shlex.split(line)[1:]], cwd=tmp_path, check=True, timeout=30)
        tile(page, "gate").locator("canvas").wait_for()
        page.wait_for_function(
            "document.querySelector('.tile canvas').getContext('2d').getImageData(0, 0, 8, 8).data[3]"
        )
        send(client, "gate", frames["clear"][:32])
        tile(page, "gate").get_by_text("33 samples").wait_for()
        page.keyboard.press("Tab")
        for _ in range(8):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.className") == "name":
                break
        page.keyboard.press("Enter")
        page.locator("#picture").wait_for()
        assert page.evaluate("document.activeElement.id") == "name"
        page.go_back()
        tile(page, "gate").locator("a").click()
        page.locator("#picture").wait_for()
        assert page.url.endswith("/camera/gate")
        assert page.errors == []
    page.locator("#line").get_by_text("no connection").wait_for()


def test_the_page_asks_for_the_key(page, frames):
    with dashboard(key=KEY) as client:
        send(client, "gate", frames["clear"][:4])
        page.goto(address(client, "/camera/gate"))
        page.locator("#key").fill("a wrong key of many characters")
        page.get_by_role("button", name="Open").click()
        wait_until(lambda: page.locator("#key-error").inner_text() != "")
        assert page.locator("#known").is_hidden()
        page.locator("#key").fill(KEY)
        page.get_by_role("button", name="Open").click()
        page.locator("#facts dt").first.wait_for()
        page.reload()
        page.locator("#facts dt").first.wait_for()
        assert page.evaluate("[sessionStorage.length, localStorage.length, document.cookie]") == [1, 0, ""]
        assert page.locator("#login").is_hidden()
        with page.expect_download() as waiting:
            page.get_by_role("button", name="Download state").click()
        assert waiting.value.suggested_filename == "gate.safetensors"
        assert all("401" in error for error in page.errors)
        assert Client(client.port).get("/streams")[0] == 401
