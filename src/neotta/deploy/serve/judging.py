"""What adapting gains on a camera, judged by its operator on pictures that were switched on."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from neotta.evaluate.judgement import Judgement
from neotta.report.judge_page import JudgePage, Reply

DISAGREEMENTS, CAMERAS = 60, 100
"""Most pictures kept of a camera, and most cameras of which some are: 60 MB in all."""
LEFT = 24 * 3600.0
"""Seconds without a request after which a judgement without a verdict is given up for a new one."""


class Shown:
    """The last answer of each request of a camera, with a picture if the plain and the adapted one differ.

    Only the newest disagreements are kept. Then the images counted are those since the last one that was dropped.
    """

    def __init__(self) -> None:
        self._count, self._since = 0, 0
        self._disagreements: deque[tuple[int, str, str, bytes]] = deque()
        self._page: JudgePage | None = None
        self._used = 0.0  # by time.monotonic()

    def add(self, plain: str, adapted: str, picture: bytes) -> None:
        self._count += 1
        if plain != adapted:
            self._disagreements.append((self._count, plain, adapted, picture))
            if len(self._disagreements) > DISAGREEMENTS:
                self._since = self._disagreements.popleft()[0]

    def reply(self, method: str, part: str, body: bytes, rule: str, changed: Callable[[], None]) -> Reply:
        """Answer a request of the page; `begin` judges the answers of this moment, or joins who judges already."""
        begin, last, self._used = (method, part) == ("POST", "begin"), self._used, time.monotonic()
        if self._page is None or (begin and (self._page.judgement.finished or self._used - last > LEFT)):
            pictures = {str(number): picture for number, _, _, picture in self._disagreements}
            answers = {str(number): (plain, adapted) for number, plain, adapted, _ in self._disagreements}
            images, line = self._count - self._since, f'neotta.adapt(model, "{rule}")'
            judgement = Judgement(answers, [rule], pictures.__getitem__, images=images, lines=[line])
            self._page = JudgePage(judgement, changed)
        return self._page.reply("GET", "state") if begin else self._page.reply(method, part, body)

    def measured(self) -> dict[str, Any] | None:
        """The gain as far as it was judged."""
        if self._page is None or not self._page.judgement.given:
            return None
        judgement = self._page.judgement
        (gain,) = judgement.gains
        about = {"answers": len(judgement.given), "images": judgement.images, "text": gain.text}
        return {"low": gain.low, "high": gain.high, "verdict": gain.verdict, **about}
