"""Does a rule help on these images? A few answers of a person, and intervals that are valid at every moment.

The plain model and some rules answered N images. Accuracy can change only where their answers differ, so a person is
asked about such disagreements alone. An image counts +1 for a rule if the rule is right and the plain model is not, -1
the other way round, and 0 if neither is. The gain of the rule is the sum over all its disagreements, divided by N.
"""

from __future__ import annotations

import csv
import hashlib
import html
import io
import json
import os
import re
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from neotta._files import write_file
from neotta._words import counted
from neotta.errors import DataError, OptionError, StorageError
from neotta.evaluate.metrics import CANNOT_TELL, Interval, verdict

NONE, SKIP = "(none)", "(skip)"
"""The answers that are no class: no candidate is right; the person cannot tell."""
ALPHA = 0.05
"""Probability, at most, that any interval of a judgement leaves the truth out at any moment."""
MOST_ANSWERS = 60
GRID, MOST_STAKE = 401, 0.75
UNSURE = f"{CANNOT_TELL} yet"


class MeanInterval:
    """An interval for the mean of `total` values from -1 to 1, drawn at random without replacement, valid at all times.

    A betting confidence sequence (Waudby-Smith and Ramdas, 2020 and 2024). For each possible mean one player bets that
    the values to come are higher, another that they are lower. At the true mean neither can expect to win, so a mean at
    which the two have 1 / alpha times their money on average is excluded, and stays so.

    A value that is not known is given by its two ends. Who bets on higher values is told the lower ends, the other the
    upper ones: at the true mean each wins in every draw at most what the value itself would pay for the same stake. So
    the interval stays valid, whatever the value is and however it was chosen to be withheld.
    """

    def __init__(self, total: int, alpha: float = ALPHA) -> None:
        self.total, self.alpha, self.count = total, alpha, 0
        self._means = np.linspace(-1, 1, GRID)
        self._money = np.zeros((2, GRID))  # logarithms: of who bets on higher values, and on lower ones
        self._sums, self._squares = [0.0, 0.0], [1.0, 1.0]  # as after one value of variance 1
        self._low, self._high = -1.0, 1.0

    def add(self, lower: float, upper: float) -> None:
        """Take the next value; both ends are equal if it is known."""
        left, self.count = self.total - self.count, self.count + 1
        for side, (sign, value) in enumerate(((1, lower), (-1, -upper))):  # a bet on lower values, seen in a mirror
            rest = (self.total * sign * self._means - self._sums[side]) / left  # mean of the values still to be drawn
            rest = rest.clip(-1, 1)  # means that are impossible by now are left to `ends`
            stake = np.sqrt(2 * np.log(2 / self.alpha) / (self._squares[side] * np.log(self.count + 1)))
            with np.errstate(divide="ignore"):
                self._money[side] += np.log1p(np.minimum(stake, MOST_STAKE / (1 + rest)) * (value - rest))
            self._sums[side] += value
            self._squares[side] += (value - self._sums[side] / (self.count + 1)) ** 2
        kept = np.flatnonzero(np.logaddexp(*self._money) - np.log(2) < np.log(1 / self.alpha))
        if len(kept):
            self._low = max(self._low, float(self._means[max(kept[0] - 1, 0)]))
            self._high = min(self._high, float(self._means[min(kept[-1] + 1, GRID - 1)]))

    @property
    def ends(self) -> tuple[float, float]:
        """The lower and the upper end, within what the values to come leave open."""
        left, total = self.total - self.count, max(1, self.total)
        least, most = (self._sums[0] - left) / total, (left - self._sums[1]) / total
        return min(max(self._low, least), most), max(min(self._high, most), least)


class Gain(NamedTuple):
    """What a rule gains over the plain model, in points of accuracy on the images judged."""

    rule: str
    changed: int  # number of images that it answers otherwise than the plain model
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """`helps`, `hurts`, `no difference` or `can't tell yet`."""
        if self.low == self.high == 0:
            return "no difference"
        said = verdict(Interval.between((self.low + self.high) / 2, self.low, self.high, self.changed))
        return UNSURE if said == CANNOT_TELL else said

    @property
    def text(self) -> str:
        """The verdict and the interval."""
        if self.low == self.high:
            return f"{self.verdict}: {self.low:+.1f} points"
        between = f"{self.low:+.1f} to {self.high:+.1f}"
        if self.verdict != UNSURE:
            return f"{self.verdict}: {between} points"
        return f"{UNSURE}: at most ±{max(-self.low, self.high):.1f} points ({between})"


class Judgement:
    """Asks a person about images on which rules and the plain model disagree, and says what each rule gains.

    Images are drawn from the disagreements of all rules together, in random order without replacement. A part of a
    sequence in random order is in random order itself: if all orders of the whole are equally likely, so are all orders
    of a rule's own disagreements. For this rule they are draws from these at random and without replacement, and its
    interval passes over all other draws. It is valid at all times, so also when the answers for other rules decide
    when to stop. The rules share alpha, so that all intervals hold together.

    The order is that of hashes of the images' names, so that it is the same when a session continues. In a notebook a
    judgement shows itself, with buttons if ipywidgets is installed.

    Args:
        answers: For each image by name the plain model's answer and those of the rules, as names of classes.
        rules: Names of the rules.
        image: Returns the image of a name, (H, W, 3) uint8, or a JPEG file as bytes.
        images: Number of images, if `answers` holds the disagreements alone.
        known: The right class of images about which nobody needs to be asked.
        digest: Returns a hash of an image: answers for another image of the same name are not used.
        path: A file for the answers, a line of JSON each. Those that it holds already are used.
        at_most: Number of answers after which to stop without a verdict.
        lines: What to write for each rule.
        notes: What was done to the images, in sentences.
    """

    def __init__(
        self,
        answers: Mapping[str, Sequence[str]],
        rules: Sequence[str],
        image: Callable[[str], Any],
        *,
        images: int | None = None,
        known: Mapping[str, str] | None = None,
        digest: Callable[[str], str] = lambda name: "",
        path: str | os.PathLike[str] | None = None,
        at_most: int = MOST_ANSWERS,
        lines: Sequence[str] = (),
        notes: Sequence[str] = (),
    ) -> None:
        self.answers = {name: tuple(row) for name, row in answers.items()}
        self.images = len(self.answers) if images is None else images
        if not self.images:
            raise DataError("there are no images to judge")
        self.rules, self.image, self.at_most = tuple(rules), image, at_most
        self.lines, self.notes = tuple(lines) or self.rules, tuple(notes)
        self.lock = threading.RLock()
        self._digest, self._path = digest, None if path is None else Path(path)
        disagreements = [name for name, row in self.answers.items() if len(set(row)) > 1]
        self.known = {name: known[name] for name in disagreements if known and name in known}
        self.order = sorted((name for name in disagreements if name not in self.known), key=_hash)
        places = range(len(self.rules))
        self._changed = [sum(self._differs(name, place) for name in disagreements) for place in places]
        self._known = [sum(self._value(*item, place)[0] for item in self.known.items()) for place in places]
        self._stored: dict[str, str] = {}
        if self._path is not None and self._path.exists():
            last = {line["image"]: line for line in _lines(self._path)}
            kept = self._usable({name: line for name, line in last.items() if line["right"] is not None}, self._path)
            self._stored = {
                name: line["right"]
                for name, line in kept.items()
                if line["right"] != NONE or set(self.candidates(name)) <= set(line["candidates"])  # of those shown
            }
        self._restart()

    def _restart(self) -> None:
        """Begin the intervals again, with all answers that are known."""
        self.given: list[str] = []
        totals = [sum(self._differs(name, place) for name in self.order) for place in range(len(self.rules))]
        shared = ALPHA / max(1, sum(total > 0 for total in totals))
        self._intervals = [MeanInterval(total, shared) for total in totals]
        self._advance()

    def _advance(self) -> None:
        """Use the answers that are known, in the order of the draws and up to the first that is not."""
        while (name := self.next) is not None and name in self._stored:
            self.given.append(self._stored[name])
            for place, interval in enumerate(self._intervals):
                if self._differs(name, place):
                    interval.add(*self._value(name, self._stored[name], place))

    def _differs(self, name: str, place: int) -> bool:
        return self.answers[name][0] != self.answers[name][1 + place]

    def _value(self, name: str, right: str, place: int) -> tuple[float, float]:
        if right == SKIP:
            return -1.0, 1.0
        value = float(right == self.answers[name][1 + place]) - float(right == self.answers[name][0])
        return value, value

    # ---- asking

    @property
    def next(self) -> str | None:
        """The image to ask about; None if all were answered."""
        return self.order[len(self.given)] if len(self.given) < len(self.order) else None

    def candidates(self, name: str) -> tuple[str, ...]:
        """The different answers to an image, in random order."""
        return tuple(sorted(set(self.answers[name]), key=lambda candidate: _hash(f"{name}\0{candidate}")))

    def answer(self, name: str, right: str) -> None:
        """Say what is right for the next image: a class, `NONE` of the candidates, or `SKIP`."""
        with self.lock:
            if name != self.next:
                raise OptionError(f"{name!r} is not the image to judge: that is {self.next!r}")
            self._write(name, right)
            self._stored[name] = right
            self._advance()

    def undo(self) -> None:
        """Take the last answer back."""
        with self.lock:
            if self.given:
                name = self.order[len(self.given) - 1]
                self._write(name, None)
                del self._stored[name]
                self._restart()

    def _write(self, name: str, right: str | None) -> None:
        if self._path is None:
            return
        line = {"image": name, "right": right, "candidates": self.candidates(name), "hash": self._digest(name)}
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab+") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
                cut_short = file.read(1) not in (b"", b"\n")  # a process died while it wrote
                file.write(b"\n" * cut_short + json.dumps(line, ensure_ascii=False).encode() + b"\n")
        except OSError as error:
            raise StorageError(f"the answer cannot be written to {str(self._path)!r}: {error}") from error

    def _usable(self, last: Mapping[str, Mapping[str, Any]], source: str | os.PathLike[str]) -> dict[str, Any]:
        """The lines for these images, of those by name that were written last."""
        strange = [name for name in last if name not in self.answers]
        if strange and len(strange) == len(last):
            raise DataError(
                f"the answers in {os.fspath(source)!r} are for other images, such as {strange[0]!r}: name another file"
            )
        hashed = [name for name, line in last.items() if name in self.answers and line.get("hash")]
        changed = [name for name in hashed if last[name]["hash"] != self._digest(name)]
        for names, what in ((strange, "are not among these images"), (changed, "changed since")):
            if names:
                message = f"{counted(len(names), 'answer')} in {os.fspath(source)!r} not used: {names[0]!r}, ... {what}"
                warnings.warn(message, RuntimeWarning, stacklevel=4)
        return {name: line for name, line in last.items() if name not in {*strange, *changed}}

    # ---- the result

    @property
    def gains(self) -> list[Gain]:
        """The gain of each rule, as far as it is known."""
        gains, points = [], 100 / self.images
        for rule, changed, known, interval in zip(self.rules, self._changed, self._known, self._intervals, strict=True):
            low, high = (points * (known + interval.total * end) for end in interval.ends)
            gains.append(Gain(rule, changed, low, high))
        return gains

    @property
    def decided(self) -> bool:
        """Whether a rule helps, or every rule has a verdict."""
        verdicts = [gain.verdict for gain in self.gains]
        return "helps" in verdicts or UNSURE not in verdicts

    @property
    def finished(self) -> bool:
        """Whether no more answers are needed: it is decided, all are given, or `at_most`."""
        return self.decided or self.next is None or len(self.given) >= self.at_most

    @property
    def line(self) -> str | None:
        """The line to write, for the rule that certainly helps most; None if none certainly helps."""
        helping = [
            (gain.low, line) for gain, line in zip(self.gains, self.lines, strict=True) if gain.verdict == "helps"
        ]
        return max(helping)[1] if helping else None

    def sentences(self) -> list[str]:
        """What is known so far, in words."""
        images = counted(self.images, "image")
        if not self.order and not self.known:
            return [f"The rules agree with the plain model on all {images}: accuracy cannot change."]
        changes = ", ".join(f"{gain.rule} changes {gain.changed:,}" for gain in self.gains)
        judged = [f"{len(self.given):,} of {len(self.order):,} disagreements judged"] * bool(self.order)
        judged += [f"{len(self.known):,} known from labels"] * bool(self.known)
        lines = [f"{gain.rule} {gain.text}." for gain in self.gains]
        if self.finished:
            more = "give more answers" if self.next is not None else "what was skipped leaves it open"
            none = "Use none: no rule helps here." if self.decided else f"Use none until you can tell: {more}."
            lines.append(f"Write: model = {self.line}" if self.line else none)
            exact = all(gain.low == gain.high for gain in self.gains)
            sure = "" if exact else f", with {1 - ALPHA:.0%} confidence"
            lines.append(f"This is about these {images}{sure}. For those to come, judge images like them.")
        return [*lines, f"Of {images}, {changes}; {', '.join(judged)}."]

    def __str__(self) -> str:
        return "\n".join([*self.sentences(), *self.notes])

    # ---- CSV files, for any tool and for teams

    def ask(self, path: str | os.PathLike[str]) -> int:
        """Write the images to judge to a CSV file with an empty column `right`. Returns how many these are."""
        names = self.order[len(self.given) :][: self.at_most]
        several = max((len(self.candidates(name)) for name in names), default=0)
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(["image", *(f"candidate {place + 1}" for place in range(several)), "right", "hash"])
        for name in names:
            shown = self.candidates(name)
            writer.writerow([name, *shown, *[""] * (several - len(shown)), "", self._digest(name)])
        write_file(path, "\ufeff" + text.getvalue())  # the mark by which spreadsheets know UTF-8
        return len(names)

    def read(self, path: str | os.PathLike[str]) -> None:
        """Read a CSV file that `ask` wrote; `right` holds a candidate, `none` or `skip`.

        Another class, one that the models give to another image, means `none`.
        Images that were left out before the last answer count as skipped.
        """
        rows = {row["image"]: row for row in read_csv(path, ("image", "right")) if row["right"].strip()}
        with self.lock:
            fresh = {name: self._meant(name, row["right"]) for name, row in self._usable(rows, path).items()}
            last = max((place for place, name in enumerate(self.order) if name in fresh), default=-1)
            left_out = {name: SKIP for name in self.order[: last + 1] if name not in self._stored}
            for name, right in {**left_out, **fresh}.items():
                self._write(name, right)
                self._stored[name] = right
            self._restart()

    def _meant(self, name: str, said: str) -> str:
        choices = {candidate.casefold(): candidate for candidate in self.candidates(name)}
        others = {each.casefold(): NONE for row in self.answers.values() for each in row}
        right = {**others, "none": NONE, "skip": SKIP, **choices}.get(said.strip().casefold())
        if right is None:
            raise DataError(f"{said!r} of {name!r} is no candidate: expected {', '.join(choices)}, none or skip")
        return right

    # ---- notebooks

    def _ipython_display_(self) -> None:
        from IPython.display import HTML, display

        try:
            import ipywidgets as widgets
        except ModuleNotFoundError:
            how = "Without ipywidgets: judgement.ask('ask.csv'), fill in the column right, judgement.read('ask.csv')."
            display(HTML(_paragraphs([*self.sentences(), *self.notes, *[how] * (not self.finished)])))
            return
        picture, buttons, told = widgets.Image(layout={"height": "320px"}), widgets.HBox(), widgets.HTML()

        def show() -> None:
            choices: dict[str, Callable[[], None]] = {}
            name = None if self.finished else self.next
            if name is not None:
                picture.value = picture_of(self.image(name))[1]
                rights = {**{each: each for each in self.candidates(name)}, "none of these": NONE, "skip": SKIP}
                choices = {text: partial(self.answer, name, right) for text, right in rights.items()}
            picture.layout.display = "none" if name is None else ""
            choices |= {"undo": self.undo} if self.given else {}
            buttons.children = [widgets.Button(description=text) for text in choices]
            for button, action in zip(buttons.children, choices.values(), strict=True):
                button.on_click(partial(press, action))
            told.value = _paragraphs(self.sentences())

        def press(action: Callable[[], None], button: object) -> None:
            action()
            show()

        show()
        display(widgets.VBox([picture, buttons, told]))


def _paragraphs(lines: Sequence[str]) -> str:
    return "".join(f"<p>{html.escape(line)}</p>" for line in lines)


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _lines(path: Path) -> list[dict[str, Any]]:
    lines = []
    content = path.read_bytes()
    for text in content.split(b"\n"):
        try:
            line = json.loads(text)
        except ValueError:  # cut short when a process died
            continue
        if isinstance(line, dict) and {"image", "right", "candidates"} <= line.keys():
            lines.append(line)
    if content and not lines:
        raise DataError(f"{str(path)!r} holds no answers: it is another kind of file")
    return lines


def read_csv(path: str | os.PathLike[str], columns: Sequence[str]) -> list[dict[str, str]]:
    """The rows of a CSV file as any spreadsheet writes it: with commas, semicolons or tabs."""
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{os.fspath(path)!r} is no UTF-8: in a spreadsheet, save it as 'CSV UTF-8'") from error
    except OSError as error:
        raise DataError(f"{os.fspath(path)!r} cannot be read: {error}") from error
    heading = text.partition("\n")[0].strip()
    rows = list(csv.DictReader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=heading.count), restval=""))
    for name in columns:
        if rows and name not in rows[0]:
            raise DataError(f"{os.fspath(path)!r} has no column {name!r}: its first line is {heading[:100]!r}")
    return rows


def picture_of(image: Any, most: int = 1600) -> tuple[str, bytes]:
    """An image, (H, W, 3) uint8, as a file to show: its type and content."""
    from PIL import Image

    if isinstance(image, bytes):
        return "image/jpeg", image
    picture, buffer = Image.fromarray(image), io.BytesIO()
    picture.thumbnail((most, most))
    kind = "png" if max(picture.size) <= 256 else "jpeg"
    picture.save(buffer, format=kind, quality=92)
    return f"image/{kind}", buffer.getvalue()


def readable_names(labels: Sequence[str] | None, outputs: int) -> list[str]:
    """A name to read for each class: words for WordNet ids, and no name twice."""
    names = [f"class {index}" for index in range(outputs)] if labels is None else list(labels)
    if all(re.fullmatch(r"n\d{8}", name) for name in names):
        from neotta.models._timm import timm_package

        timm_package()
        from timm.data import ImageNetInfo

        words = ImageNetInfo("imagenet-22k").label_name_to_description
        names = [", ".join(words(name).split(", ")[:2]) for name in names]  # of up to ten synonyms
    return [f"{name} ({index})" if names.count(name) > 1 else name for index, name in enumerate(names)]
