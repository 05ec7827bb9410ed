"""What adapting gains on a camera, judged by its operator on pictures that were switched on."""

from __future__ import annotations

from collections import deque
from typing import Any

from neotta.evaluate.judgement import Judgement
from neotta.report.judge_page import JudgePage, Reply

DISAGREEMENTS, CAMERAS = 60, 100
"""Most pictures kept of a camera, and most cameras of which some are: 60 MB in all."""


class Shown:
    """The last answer of each request of a camera, with a picture if the plain and the adapted one differ.

    Only the newest disagreements are kept. Then the images counted are those since the last one that was dropped.
    """

    def __init__(self) -> None:
        self._count, self._since = 0, 0
        self._disagreements: deque[tuple[int, str, str, bytes]] = deque()
        self._page: JudgePage | None = None

    def add(self, plain: str, adapted: str, picture: bytes) -> None:
        self._count += 1
        if plain != adapted:
            self._disagreements.append((self._count, plain, adapted, picture))
            if len(self._disagreements) > DISAGREEMENTS:
                self._since = self._disagreements.popleft()[0]

    def reply(self, method: str, part: str, body: bytes, rule: str) -> Reply:
        """Answer a request of the page; `begin` judges the answers of this moment."""
        if self._page is None or part == "begin":
            pictures = {str(number): picture for number, _, _, picture in self._disagreements}
            answers = {str(number): (plain, adapted) for number, plain, adapted, _ in self._disagreements}
            images, line = self._count - self._since, f'neotta.adapt(model, "{rule}")'
            self._page = JudgePage(Judgement(answers, [rule], pictures.__getitem__, images=images, lines=[line]))
        return self._page.reply("GET", "state") if part == "begin" else self._page.reply(method, part, body)

    def measured(self) -> dict[str, Any] | None:
        """The gain as far as it was judged."""
        if self._page is None or not self._page.judgement.given:
            return None
        judgement = self._page.judgement
        (gain,) = judgement.gains
        about = {"answers": len(judgement.given), "images": judgement.images, "text": gain.text}
        return {"low": gain.low, "high": gain.high, "verdict": gain.verdict, **about}
