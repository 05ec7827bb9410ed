"""The dashboard in a real browser: a camera turns foggy, and the page shows it; actions work."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from support.serving import Client, serving

from neotta.data.corruptions import corrupt
from neotta.data.handwritten import digits
from neotta.deploy.serve.torch_engine import TorchEngine
from neotta.models.load import load_model

KEY = "a key of sixteen characters"
CLEAR, FOGGY = "clear", "foggy"


def frames(fog):
    """Frames of a camera, (n, 32, 32, 3) uint8."""
    dataset = digits("test")
    images = [dataset.read(index) for index in range(0, 600, 5)]
    return np.stack([corrupt(image, "fog", 5, seed=index) for index, image in enumerate(images)] if fog else images)


class Traffic:
    """Sends the frames of some cameras, over and over."""

    def __init__(self, client, cameras, size=8):
        self.client, self.size, self.sent = client, size, 0
        self.weather = dict.fromkeys(cameras, CLEAR)
        self.frames = {CLEAR: frames(False), FOGGY: frames(True)}
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        generator = np.random.default_rng(0)
        while not self.stop.is_set():
            for camera, weather in self.weather.items():
                images = self.frames[weather][generator.integers(0, len(self.frames[weather]), self.size)]
                scaled = (images.transpose(0, 3, 1, 2) / 255 - 0.5) / 0.5
                self.client.infer(scaled.astype(np.float32), name="digits", outputs=["class"], stream=camera)
            self.sent += self.size

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *error):
        self.stop.set()
        self.thread.join(20)


@pytest.fixture
def page(browser):
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.errors = []
    page.on("console", lambda said: page.errors.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    yield page
    page.close()


@pytest.mark.slow
def test_a_camera_turns_foggy_and_is_frozen(page, tmp_path):
    engine = TorchEngine(load_model("digits"), folder=tmp_path)
    options = {"name": "digits", "folder": tmp_path, "images": 4, "history": 0.5, "snapshots": 2.0, "durable": 1.0}
    with serving(engine, **options) as client, Traffic(client, ["gate", "yard <b>"]) as traffic:
        while traffic.sent < 600:
            time.sleep(0.05)
        page.goto(f"http://127.0.0.1:{client.port}/")
        gate, yard = (page.locator(".camera", has_text=name) for name in ("gate", "yard <b>"))
        gate.wait_for()
        assert gate.get_attribute("data-status") == "calm"
        gate.click()
        page.locator("#plots svg").first.wait_for()
        page.locator("#images img").first.wait_for()
        before = client.service.watch.summary("gate")["shift"]

        traffic.weather["gate"] = FOGGY
        page.locator(".camera[data-status=changed]", has_text="gate").wait_for()
        shown = time.time()
        (alarm,) = client.service.records.alarms("gate")[-1:]
        assert shown - alarm["time"] < 2
        assert yard.get_attribute("data-status") == "calm"
        page.locator("#alarms li.change").first.wait_for()
        assert client.service.watch.summary("gate")["shift"] > before + 0.05

        page.get_by_role("button", name="Freeze", exact=True).click()
        page.locator("#status", has_text="changed").or_(page.locator("#status", has_text="frozen")).wait_for()
        page.locator("#said", has_text="frozen").wait_for()
        count = client.service.engine.counts()["gate"]
        time.sleep(0.3)
        assert client.service.engine.counts()["gate"] == count
        page.get_by_role("button", name="Unfreeze").click()
        page.locator("#said", has_text="adapting again").wait_for()

        page.get_by_role("button", name="Rename…").click()
        page.locator("#answer").fill("<i>front gate</i>")
        page.locator("#confirm").click()
        page.locator("#name", has_text="<i>front gate</i> (gate)").wait_for()
        page.get_by_role("button", name="Roll back").click()
        page.locator("#confirm").click()
        page.locator("#said", has_text="rolled back").wait_for()
        page.screenshot(path=tmp_path / "desktop.png", full_page=True)
        page.set_viewport_size({"width": 390, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.screenshot(path=tmp_path / "phone.png", full_page=True)
        page.emulate_media(color_scheme="dark")
        page.screenshot(path=tmp_path / "dark.png", full_page=True)
        assert page.errors == []


def test_the_page_asks_for_the_key(page):
    with serving(key=KEY, read_key="another key, to look only") as client:
        client.infer(np.zeros((1, 3, 32, 32), np.float32), stream="gate")
        page.goto(f"http://127.0.0.1:{client.port}/")
        page.locator("#key").fill("wrong")
        page.get_by_role("button", name="Open").click()
        page.locator("#key-error", has_text="the key is wrong").wait_for()
        page.locator("#key").fill("another key, to look only")
        page.get_by_role("button", name="Open").click()
        page.locator(".camera", has_text="gate").click()
        page.get_by_role("button", name="Freeze", exact=True).click()
        page.locator("#said", has_text="read-only").wait_for()
        assert all("401" in error or "403" in error for error in page.errors)
        stranger = Client(client.port)
        assert stranger.get("/api/cameras")[0] == 401
        assert stranger.get("/static/..%2Frecords.py")[0] == 404
