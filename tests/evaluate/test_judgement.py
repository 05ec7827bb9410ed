"""Judging disagreements: the interval, the draws of several rules, answers that are kept, CSV files, notebooks."""

from __future__ import annotations

import itertools
import json
import runpy
import sys
import types
from collections import Counter

import numpy as np
import pytest

from neotta.errors import DataError, OptionError
from neotta.evaluate.judgement import ALPHA, NONE, SKIP, UNSURE, Gain, Judgement, MeanInterval, picture_of

CODES = {1: ("wrong", "right"), -1: ("right", "wrong"), 0: ("wrong", "other")}


def values(seed, *counts):
    """+1, -1 and 0, so many of each, in random order."""
    return np.random.default_rng(seed).permutation(np.repeat([1, -1, 0], counts)).tolist()


def interval(seen, total, alpha=ALPHA):
    made = MeanInterval(total, alpha)
    for value in seen:
        made.add(*(value if isinstance(value, tuple) else (value, value)))
    return made.ends


def image(name):
    return np.full((8, 8, 3), sum(name.encode()) % 256, np.uint8)


def judgement(answers, rules=("neo",), **more):
    return Judgement(answers, rules, image, **more)


def mixed(better=6, worse=3, neither=3, same=20):
    """Images by name with what the plain model and one rule answer, where `right` is right."""
    kinds = [1] * better + [-1] * worse + [0] * neither
    return {f"{place}.png": CODES[kind] for place, kind in enumerate(kinds)} | {
        f"same{place}.png": ("right", "right") for place in range(same)
    }


def give(judged, right="right", count=None):
    """Answer truthfully, `NONE` where no candidate is right."""
    for _ in range(count if count is not None else len(judged.order)):
        if (name := judged.next) is not None:
            judged.answer(name, right if right in (*judged.candidates(name), SKIP) else NONE)


# ---- the interval


@pytest.mark.parametrize(
    ("seed", "counts", "low", "high"),
    [(0, (40, 5, 15), 0.255, 0.81666667), (1, (5, 30, 10), -0.71111111, -0.38), (2, (20, 20, 20), -0.325, 0.22)],
)
def test_the_interval_is_that_of_recorded_sequences(seed, counts, low, high):
    assert interval(values(seed, *counts)[:30], sum(counts)) == pytest.approx((low, high), abs=1e-8)


def test_the_interval_equals_the_reference_after_every_answer(shared):
    reference = runpy.run_path(str(shared / "judge" / "reference.py"))["interval"]
    for seed, counts in enumerate([(567, 23, 600), (8, 8, 4), (3, 0, 0), (0, 1, 0), (10, 45, 45), (1, 1, 40)]):
        seen = values(seed, *counts)[:60]
        made = MeanInterval(sum(counts), 0.025)
        for count, value in enumerate(seen, 1):
            made.add(value, value)
            assert made.ends == pytest.approx(reference(seen[:count], sum(counts), 0.025), abs=1e-12)


def test_the_interval_is_valid_at_every_moment_and_shrinks():
    missed, runs = 0, 200
    for seed in range(runs):
        seen = values(seed, 30, 20, 10)
        made, truth, last = MeanInterval(60), 10 / 60, (-1.0, 1.0)
        out = False
        for value in seen:
            made.add(value, value)
            out |= not made.ends[0] - 1e-9 <= truth <= made.ends[1] + 1e-9
            assert out or (last[0] <= made.ends[0] + 1e-12 and made.ends[1] <= last[1] + 1e-12)
            last = made.ends
        assert made.ends == pytest.approx((truth, truth))
        missed += out
    assert missed <= ALPHA * runs


def test_a_value_withheld_only_widens_the_interval_and_cannot_decide():
    seen = values(3, 40, 5, 15)[:40]
    for left_out in ({0, 1, 2}, {10, 20, 30}, set(range(0, 40, 2))):
        hidden = [(-1, 1) if place in left_out else value for place, value in enumerate(seen)]
        low, high = interval(seen, 60)
        wide_low, wide_high = interval(hidden, 60)
        assert wide_low <= low
        assert high <= wide_high
    assert interval([(-1, 1)] * 60, 60) == (-1, 1)


def test_intervals_hold_whatever_is_skipped():
    """A person who skips all images that speak for the rule, and so knows the answers before."""
    missed = 0
    for seed in range(100):
        made, out = MeanInterval(100), False
        for value in values(seed, 40, 30, 30)[:60]:
            made.add(*((-1, 1) if value == 1 else (value, value)))
            out |= not made.ends[0] - 1e-9 <= 0.1 <= made.ends[1] + 1e-9
        missed += out
    assert missed <= 5


# ---- several rules


def test_the_draws_of_one_rule_are_in_random_order_within_those_of_several():
    """Of six disagreements of two rules, three are those of the first: each of their orders is as likely."""
    seen = Counter()
    for run in range(3000):
        names = [f"{run}/{place}" for place in range(6)]
        answers = {
            name: ("a", "b" if place < 3 else "a", "b" if place > 1 else "a") for place, name in enumerate(names)
        }
        judged = judgement(answers, ("first", "second"))
        seen[tuple(names.index(name) for name in judged.order if names.index(name) < 3)] += 1
    assert set(seen) == set(itertools.permutations(range(3)))
    assert all(abs(count - 500) < 5 * np.sqrt(500) for count in seen.values())


def test_rules_share_alpha_and_hold_together():
    """Two rules with overlapping disagreements: at no moment does an interval leave its truth out, in 95 % of runs."""
    kinds = [(1, 1)] * 20 + [(1, 0)] * 15 + [(-1, 1)] * 10 + [(-1, -1)] * 15 + [(None, 1)] * 20 + [(0, None)] * 10
    rows = [("wrong", "right"), ("right", "wrong")]
    missed, runs = 0, 120
    for run in range(runs):
        answers = {}
        for place, (one, two) in enumerate(kinds):
            plain = "right" if -1 in (one, two) else "wrong"
            said = {1: "right", -1: "wrong", 0: "other", None: plain}
            answers[f"{run}/{place}"] = (
                (plain, said[one], said[two]) if plain == "wrong" or 1 not in (one, two) else rows[0] + ("right",)
            )
        answers |= {f"{run}/same{place}": ("right",) * 3 for place in range(10)}
        judged = judgement(answers, ("one", "two"), at_most=10**6)
        truths = [
            100 * np.mean([(row[place] == "right") - (row[0] == "right") for row in answers.values()])
            for place in (1, 2)
        ]
        out = False
        for _ in range(60):
            give(judged, count=1)
            out |= any(
                not g.low - 1e-9 <= truth <= g.high + 1e-9 for g, truth in zip(judged.gains, truths, strict=True)
            )
        missed += out
    assert missed <= ALPHA * runs


def test_alpha_is_shared_by_the_rules_that_change_something():
    alone, shared, unneeded = (
        judgement(
            {name: (row[0], *(row[place] for place in places)) for name, row in mixed(12, 4, 4, 0).items()}, rules
        )
        for places, rules in (((1,), "a"), ((1, 1), "ab"), ((1, 0), "ab"))
    )
    for judged in (alone, shared, unneeded):
        give(judged, count=12)
    seen = [
        (right == alone.answers[name][1]) - (right == alone.answers[name][0])
        for name, right in zip(alone.order, alone.given, strict=False)
    ]
    for judged, alpha in ((alone, ALPHA), (shared, ALPHA / 2), (unneeded, ALPHA)):
        low, high = interval(seen, 20, alpha)
        assert (judged.gains[0].low, judged.gains[0].high) == pytest.approx((100 * low, 100 * high))


def test_each_rule_counts_its_own_disagreements_alone():
    answers = {"a": ("x", "y", "x"), "b": ("x", "x", "y"), "c": ("x", "y", "z"), "d": ("x", "x", "x")}
    judged = judgement(answers, ("one", "two"))
    assert sorted(judged.order) == ["a", "b", "c"]
    for name in list(judged.order):
        judged.answer(name, {"a": "y", "b": "x", "c": "z"}[name])
    one, two = judged.gains
    assert (one.changed, one.low, one.high) == (2, 25, 25)  # +1 for a, 0 for c: 1 of 4
    assert (two.changed, two.low, two.high) == (2, 0, 0)  # -1 for b, +1 for c
    assert (one.verdict, two.verdict) == ("helps", "no difference")


# ---- a session


def test_answers_lead_to_a_verdict_and_a_line():
    judged = judgement(mixed(40, 3, 5), lines=['neotta.adapt(model, "neo")'])
    assert not judged.finished
    assert judged.line is None
    while not judged.finished:
        give(judged, count=1)
    assert len(judged.given) < 30
    assert judged.gains[0].verdict == "helps"
    assert judged.line == 'neotta.adapt(model, "neo")'
    assert "these 68 images" in str(judged)


def test_one_rule_that_helps_is_enough_and_the_surest_is_recommended():
    better = [("wrong", "right", "wrong")] * 40 + [("right", "right", "wrong"), ("wrong", "wrong", "right")] * 2
    answers = {f"{place}.png": row for place, row in enumerate(better)}
    judged = judgement(answers, ("one", "two"), lines=["first", "second"])
    while not judged.finished:
        give(judged, count=1)
    assert [gain.verdict for gain in judged.gains] == ["helps", UNSURE]
    assert judged.next is not None
    both = {f"{place}.png": ("wrong", "right", "right" if place < 20 else "wrong") for place in range(30)}
    for rules, line in ((("one", "two"), "first"), (("two", "one"), "second")):
        ordered = {name: row if rules[0] == "one" else (row[0], row[2], row[1]) for name, row in both.items()}
        judged = judgement(ordered, rules, known=dict.fromkeys(ordered, "right"), lines=["first", "second"])
        assert judged.line == line


def test_a_rule_that_hurts_is_not_recommended():
    judged = judgement(mixed(3, 40, 5))
    while not judged.finished:
        give(judged, count=1)
    assert judged.gains[0].verdict == "hurts"
    assert judged.line is None
    assert "Use none" in str(judged)


def test_it_stops_without_a_verdict_and_says_how_much_is_open():
    judged = judgement(mixed(30, 30, 30), at_most=12)
    give(judged, count=12)
    assert judged.finished
    (gain,) = judged.gains
    assert gain.verdict == UNSURE
    assert gain.text.startswith(f"can't tell yet: at most ±{max(-gain.low, gain.high):.1f}")


def test_rules_that_agree_everywhere_need_no_answers():
    judged = judgement({"a": ("x", "x"), "b": ("y", "y")})
    assert judged.finished
    assert judged.next is None
    assert "agree with the plain model on all 2 images: accuracy cannot change" in str(judged)


@pytest.mark.parametrize("count", [1, 2])
def test_one_or_two_disagreements_are_known_when_answered(count):
    judged = judgement(mixed(count, 0, 0, same=8))
    give(judged)
    assert judged.gains == [Gain("neo", count, *[pytest.approx(100 * count / (8 + count))] * 2)]


def test_skips_alone_decide_nothing():
    judged = judgement(mixed(20, 0, 0))
    give(judged, SKIP)
    assert judged.gains[0].verdict == UNSURE
    assert (judged.gains[0].low, judged.gains[0].high) == (-50, 50)
    assert "what was skipped leaves it open" in str(judged)


def test_labels_are_used_and_only_the_others_are_asked():
    answers = mixed(6, 3, 3)
    everything = judgement(answers, known=dict.fromkeys(answers, "right"))
    assert everything.finished
    assert everything.order == []
    assert everything.gains[0].low == everything.gains[0].high == pytest.approx(100 * 3 / 32)
    some = judgement(answers, known={"0.png": "right", "6.png": "right"})
    assert len(some.order) == 10
    give(some)
    assert some.gains[0].low == some.gains[0].high == pytest.approx(100 * 3 / 32)


def test_candidates_are_in_random_order():
    judged = judgement({str(place): ("plain", "rule") for place in range(400)})
    first = Counter(judged.candidates(name)[0] for name in judged.order)
    assert 150 < first["plain"] < 250


def test_only_the_next_image_is_answered():
    judged = judgement(mixed())
    with pytest.raises(OptionError):
        judged.answer(judged.order[1], "right")
    with pytest.raises(DataError):
        judgement({})


# ---- answers that are kept


def test_a_session_continues_where_it_was(tmp_path):
    path = tmp_path / "answers.jsonl"
    judged = judgement(mixed(), path=path)
    give(judged, count=5)
    judged.undo()
    again = judgement(mixed(), path=path)
    assert again.given == judged.given
    assert len(again.given) == 4
    assert again.gains == judged.gains
    with path.open("ab") as file:
        file.write(b'{"image": "cut sho')
    again = judgement(mixed(), path=path)
    give(again, count=1)
    assert len(judgement(mixed(), path=path).given) == 5


def test_undo_leaves_what_was_known_before():
    judged, before = judgement(mixed()), judgement(mixed())
    give(before, count=3)
    give(judged, count=4)
    judged.undo()
    assert judged.gains == before.gains
    for _ in range(10):
        judged.undo()
    assert judged.given == []


def test_answers_for_images_that_changed_or_went_are_not_used(tmp_path):
    path, hashes = tmp_path / "answers.jsonl", {}
    answers = mixed()
    judged = judgement(answers, path=path, digest=lambda name: hashes.get(name, "old"))
    give(judged, count=4)
    first, second = judged.order[:2]
    hashes[second] = "new"
    with pytest.warns(RuntimeWarning, match="changed since"):
        again = judgement(answers, path=path, digest=lambda name: hashes.get(name, "old"))
    assert len(again.given) == 1
    give(again, count=1)
    assert len(again.given) == 4, "answers that wait for their turn are used then"
    del answers[first]
    with pytest.warns(RuntimeWarning, match="not among these images"):
        judgement(answers, path=path, digest=lambda name: hashes.get(name, "old"))
    with pytest.raises(DataError):
        judgement({"other": ("a", "b")}, path=path)
    path.write_text("no answers")
    with pytest.raises(DataError):
        judgement(answers, path=path)


def test_none_of_the_candidates_is_asked_again_where_there_are_others(tmp_path):
    path = tmp_path / "answers.jsonl"
    judged = judgement({"a": ("x", "y"), "b": ("x", "y")}, path=path)
    judged.answer(judged.next, NONE)
    judged.answer(judged.next, "y")
    other = judgement({"a": ("x", "z"), "b": ("x", "z")}, path=path)
    assert "y" in other.given or other.next is not None
    assert NONE not in other.given


# ---- CSV files


@pytest.mark.parametrize("edited", [",", ";", "\t"])
def test_a_csv_file_asks_blindly_and_is_read_back_as_a_spreadsheet_saves_it(tmp_path, edited):
    path = tmp_path / "ask.csv"
    judged = judgement(mixed(), at_most=8)
    assert judged.ask(path) == 8
    lines = path.read_text(encoding="utf-8-sig").splitlines()
    assert lines[0] == "image,candidate 1,candidate 2,right,hash"
    assert [line.split(",")[0] for line in lines[1:]] == judged.order[:8]
    filled = [lines[0]]
    for line in lines[1:]:
        name, one, two, right, digest = line.split(",")
        assert right == ""
        filled.append(",".join([name, one, two, "Right " if "right" in (one, two) else "none", digest]))
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(filled).replace(",", edited).encode())
    judged.read(path)
    by_hand = judgement(mixed(), at_most=8)
    give(by_hand, count=8)
    assert judged.given == by_hand.given


def test_rows_left_empty_count_as_skipped_and_wrong_words_are_refused(tmp_path):
    judged = judgement(mixed(12, 0, 0))
    first, second, third = judged.order[:3]
    path = tmp_path / "answers.csv"
    path.write_text(f"image,right\n{first},right\n{second},\n{third},right\n{judged.order[3]},\n")
    judged.read(path)
    assert judged.given == ["right", SKIP, "right"]
    path.write_text(f"image,right\n{judged.order[3]},rihgt\n")
    with pytest.raises(DataError, match=r"'rihgt' of .* expected"):
        judged.read(path)
    path.write_text("image,right\nelsewhere.png,right\n")
    with pytest.raises(DataError):
        judged.read(path)
    path.write_bytes("image,right\na,K\u00e4fer\n".encode("latin-1"))
    with pytest.raises(DataError, match="UTF-8"):
        judged.read(path)
    path.write_text("picture,right\na,b\n")
    with pytest.raises(DataError, match="image"):
        judged.read(path)


def test_a_class_that_is_no_candidate_of_an_image_is_none_of_these(tmp_path):
    judged = judgement({"a.png": ("8", "3"), "b.png": ("9", "8")})
    path = tmp_path / "answers.csv"
    path.write_text("image,right\na.png,9\nb.png,9\n")
    judged.read(path)
    assert dict(zip(judged.order, judged.given, strict=True)) == {"a.png": NONE, "b.png": "9"}


def test_answers_of_a_csv_file_for_images_that_changed_since_are_not_used(tmp_path):
    path, hashes = tmp_path / "ask.csv", {}
    judged = judgement(mixed(12, 0, 0), digest=lambda name: hashes.get(name, "old"))
    judged.ask(path)
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join([lines[0], *(line.replace(",,old", ",right,old") for line in lines[1:])]))
    first = judged.order[0]
    hashes[first] = "new"
    other = {name: ("wrong", "third") if name == first else row for name, row in mixed(12, 0, 0).items()}
    judged = judgement(other, digest=lambda name: hashes.get(name, "old"))
    with pytest.warns(RuntimeWarning, match="changed since"):
        judged.read(path)
    assert judged.given == [SKIP, *["right"] * 11]


def test_more_is_asked_where_so_many_answers_told_nothing(tmp_path):
    judged = judgement(mixed(30, 30, 30), at_most=12)
    give(judged, count=12)
    assert judged.finished
    assert not judged.decided
    assert judged.ask(tmp_path / "ask.csv") == 12


def test_answers_of_a_csv_file_are_kept(tmp_path):
    kept, path = tmp_path / "kept.jsonl", tmp_path / "answers.csv"
    judged = judgement(mixed(12, 0, 0), path=kept)
    path.write_text("image,right\n" + "".join(f"{name},right\n" for name in judged.order))
    judged.read(path)
    assert judgement(mixed(12, 0, 0), path=kept).gains == judged.gains
    assert len([json.loads(line) for line in kept.read_text().splitlines()]) == 12


# ---- showing it


def test_pictures_are_small_enough_to_show():
    assert picture_of(np.zeros((32, 32, 3), np.uint8))[0] == "image/png"
    kind, content = picture_of(np.zeros((3000, 4000, 3), np.uint8))
    assert kind == "image/jpeg"
    assert len(content) < 200_000


class Widget:
    """What ipywidgets has, as far as it is used: things with values, children and something that happens on a click."""

    def __init__(self, children=(), **values):
        self.children, self.layout = children, types.SimpleNamespace(display="")
        self.__dict__.update({name: value for name, value in values.items() if name != "layout"})

    def on_click(self, action):
        self.click = lambda: action(self)


def test_a_notebook_shows_buttons_where_there_are_widgets(monkeypatch):
    shown = []
    kinds = dict.fromkeys(("Image", "HBox", "VBox", "HTML", "Button"), Widget)
    monkeypatch.setitem(sys.modules, "ipywidgets", types.SimpleNamespace(**kinds))
    monkeypatch.setattr("IPython.display.display", shown.append)
    judged = judgement(mixed())
    judged._ipython_display_()
    (box,) = shown
    picture, buttons, told = box.children

    def press(text):
        next(button for button in buttons.children if button.description == text).click()

    assert [button.description for button in buttons.children][-2:] == ["none of these", "skip"]
    assert picture.value.startswith(b"\x89PNG")
    press("none of these")
    press("skip")
    press("undo")
    assert judged.given == [NONE]
    give(judged)
    press("undo")
    give(judged)
    judged._ipython_display_()
    assert "these 32 images" in shown[-1].children[2].value
    assert told.value


def test_a_notebook_without_widgets_names_the_csv_way(monkeypatch):
    shown = []
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    monkeypatch.setattr("IPython.display.display", shown.append)
    judgement(mixed())._ipython_display_()
    assert "judgement.ask" in shown[0].data
