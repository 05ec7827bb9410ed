"""Photographs the pages that neotta writes and serves, into `docs/images`: demo, judge, compare, paper, dashboard.

Needs `pip install -e '.[dev]'` and Debian's chromium. `python scripts/screenshots.py demo compare` makes some of them.
"""

from __future__ import annotations

import argparse
import io
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

import neotta
from neotta.data import CORRUPTIONS, corrupt, digits
from neotta.report.judge_page import JudgePage, JudgeServer

DOCS = Path(__file__).resolve().parent.parent / "docs"
WIDTH, HEIGHT, PORT = 1180, 900, 8765
NEOTTA = (sys.executable, "-m", "neotta")
CAMERAS = {"gate": "clear", "yard": "fog", "dock": "frost", "roof": "brightness", "ramp": "clear"}


def command(*arguments: str, folder: Path) -> None:
    """Run neotta in a folder."""
    subprocess.run([*NEOTTA, *arguments], cwd=folder, check=True, capture_output=True)


def demo(page: Page, folder: Path) -> bytes:
    """The page of the demonstration."""
    command("demo", folder=folder)
    page.goto((folder / "neotta-demo.html").as_uri())
    return page.screenshot()


def compare(page: Page, folder: Path) -> bytes:
    """The page of a comparison."""
    chosen = ("--corruptions", "frost,brightness,fog,contrast", "--seeds", "3")
    command("run", "--methods", "none,neo,neo-stream,t3a", *chosen, folder=folder)
    command("compare", "results.jsonl", "-o", "page.html", folder=folder)
    page.goto((folder / "page.html").as_uri())
    return page.screenshot()


def judge(page: Page, folder: Path) -> bytes:
    """A judgement of the digits of other people, after eight answers."""
    data = digits("all")
    judgement = neotta.judge("mnist", data.images)
    for _ in range(8):
        judgement.answer(str(judgement.next), str(data.labels[int(str(judgement.next))]))
    with JudgeServer(JudgePage(judgement)) as server:
        page.goto(server.address)
        page.get_by_text("8 answered of").wait_for()
        page.wait_for_timeout(300)
        return page.screenshot()


def paper(page: Page, folder: Path) -> bytes:
    """Two items of the paper."""
    command("paper", "gains", "samples", "-o", "report", folder=folder)
    page.goto((folder / "report" / "report.html").as_uri())
    return page.screenshot()


def dashboard(page: Page, folder: Path) -> bytes:
    """The dashboard of the server, after a few hundred images of five cameras."""
    with served():
        send_images()
        page.goto(f"http://127.0.0.1:{PORT}/")
        page.wait_for_timeout(3000)
        return page.screenshot()


@contextmanager
def served() -> Iterator[None]:
    """A server of the bundled digits on loopback, without a store."""
    server = subprocess.Popen([*NEOTTA, "serve", "digits", "--port", str(PORT), "--store", "memory"])
    try:
        for _ in range(120):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{PORT}/v2/health/ready", timeout=1)
                break
            except (urllib.error.URLError, OSError):
                time.sleep(0.5)
        yield
    finally:
        server.terminate()
        server.wait(30)


def send_images() -> None:
    """Sixty-four images of each camera in a minute: mixed digits in its weather, one digit on the ramp."""
    data = digits()
    zeros = [row for row, label in enumerate(data.labels) if label == 0]
    for count in range(64):
        time.sleep(0.7)  # long enough for a history
        for camera, weather in CAMERAS.items():
            row = zeros[count % len(zeros)] if camera == "ramp" else (count * 7) % len(data)
            picture = data.read(row)
            if weather in CORRUPTIONS:
                picture = corrupt(picture, weather, 5, "cifar", image_id=f"{camera}/{row}")
            body = io.BytesIO()
            Image.fromarray(picture).save(body, "PNG")
            address = f"http://127.0.0.1:{PORT}/classify?stream={camera}"
            headers = {"Content-Type": "image/png"}
            urllib.request.urlopen(urllib.request.Request(address, body.getvalue(), headers), timeout=30).read()


SHOTS: dict[str, Callable[[Page, Path], bytes]] = {
    "demo": demo,
    "judge": judge,
    "compare": compare,
    "paper": paper,
    "dashboard": dashboard,
}


def main() -> None:
    """Photograph what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="PAGE", help=f"some of {', '.join(SHOTS)}; by default all")
    parser.add_argument("--into", type=Path, default=DOCS / "images")
    wanted = parser.parse_args()
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as scratch:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name in wanted.names or SHOTS:
            folder = Path(scratch, name)
            folder.mkdir()
            page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, device_scale_factor=1.5)
            picture = Image.open(io.BytesIO(SHOTS[name](page, folder)))
            picture.convert("RGB").save(wanted.into / f"{name}.webp", quality=82)
            page.close()


if __name__ == "__main__":
    main()
