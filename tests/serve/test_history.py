"""History and snapshots of streams: lasting, bounded, and locked."""

from __future__ import annotations

import numpy as np
import pytest

from neotta.deploy.serve.history import FILE, POINTS, SNAPSHOTS, History
from neotta.errors import StateFileError, StorageError
from neotta.neo.codec import HeadStates, StateFile
from neotta.neo.mean import MeanRule


def state(value):
    fields = MeanRule().layout(2).fields
    return StateFile("neo", {}, {"fc": HeadStates({}, "embeddings", 2, fields, None, np.full((1, 7), value))})


def test_it_lasts(tmp_path):
    history = History(tmp_path)
    history.freeze("gate", True)
    history.freeze("yard", True)
    history.freeze("yard", False)
    history.add_points({"gate": {"shift": 0.5}}, now=10.0)
    history.add_snapshots({"gate": state(1.0)}, now=12.0)
    history.close()
    history = History(tmp_path)
    assert history.frozen == {"gate"}
    assert history.points("gate") == [{"time": 10.0, "shift": 0.5}]
    assert history.snapshot("gate", 11.9) is None
    time, found = history.snapshot("gate", 99.0)
    assert (time, found.method, found.heads["fc"].table.tolist()) == (12.0, "neo", [[1.0] * 7])
    history.forget("gate")
    assert (history.points("gate"), history.snapshots("gate"), history.frozen) == ([], [], set())


def test_everything_is_bounded_and_the_new_is_kept():
    history = History()
    for index in range(3 * POINTS):
        history.add_points({"a": {"index": index}}, now=float(index))
        if index == POINTS:  # the first time that some go
            left = [point["index"] for point in history.points("a")]
            assert left[-POINTS // 2 :] == list(range(POINTS // 2 + 1, POINTS + 1))
            assert left[:4] == [0, 2, 4, 6]
    points = [point["index"] for point in history.points("a")]
    assert len(points) <= POINTS
    assert points == sorted(points)
    assert points[0] == 0
    assert points[-100:] == list(range(3 * POINTS - 100, 3 * POINTS))
    for index in range(5 * SNAPSHOTS):
        history.add_snapshots({"a": state(0.0)}, now=float(index))
    snapshots = history.snapshots("a")
    assert len(snapshots) <= SNAPSHOTS
    assert (snapshots[0], snapshots[-1]) == (0.0, 5.0 * SNAPSHOTS - 1)


def test_the_last_snapshot_before_a_time_is_taken_whatever_the_order_of_writing():
    history = History()
    for now in (100.0, 5.0, 200.0):
        history.add_snapshots({"a": state(now)}, now=now)
        history.add_snapshots({"b": state(-1.0)}, now=now)
    assert history.snapshots("a") == [5.0, 100.0, 200.0]
    for before, expected in ((5.0, 5.0), (99.0, 5.0), (150.0, 100.0), (1e9, 200.0)):
        assert history.snapshot("a", before)[1].heads["fc"].table[0, 0] == expected


def test_damage_is_named(tmp_path):
    history = History(tmp_path)
    history.add_snapshots({"a": state(0.0)}, now=1.0)
    history._database.execute("UPDATE snapshots SET state = x'00'")
    with pytest.raises(StateFileError, match="snapshot of 'a' is damaged"):
        history.snapshot("a", 2.0)
    history.close()
    (tmp_path / FILE).write_bytes(b"this is no database, " * 100)
    with pytest.raises(StateFileError, match="damaged"):
        History(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError):
        History(tmp_path / "file")


def test_a_second_server_is_kept_out_by_the_database_itself(tmp_path):
    first = History(tmp_path)
    for path in tmp_path.iterdir():
        if path.name != FILE:
            path.unlink()  # there is no lock file whose removal lets a second server in
    with pytest.raises(StateFileError, match="in use by another"):
        History(tmp_path)
    first.close()
    History(tmp_path).close()
