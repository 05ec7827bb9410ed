"""History and snapshots of streams: lasting, bounded, and locked."""

from __future__ import annotations

import pytest
import torch

from neotta.deploy.serve.history import FILE, POINTS, SNAPSHOTS, History
from neotta.errors import StateFileError, StorageError


def test_it_lasts(tmp_path):
    history = History(tmp_path)
    history.freeze("gate", True)
    history.freeze("yard", True)
    history.freeze("yard", False)
    history.add_points({"gate": {"shift": 0.5}}, now=10.0)
    history.add_snapshots({"gate": {"head.mean": torch.arange(3.0)}}, now=12.0)
    history.close()
    history = History(tmp_path)
    assert history.frozen == {"gate"}
    assert history.points("gate") == [{"time": 10.0, "shift": 0.5}]
    assert history.snapshot("gate", 11.9) is None
    time, state = history.snapshot("gate", 99.0)
    assert (time, state["head.mean"].tolist()) == (12.0, [0.0, 1.0, 2.0])
    history.forget("gate")
    assert (history.points("gate"), history.snapshots("gate"), history.frozen) == ([], [], set())


def test_everything_is_bounded_and_the_new_is_kept():
    history = History()
    for index in range(3 * POINTS):
        history.add_points({"a": {"index": index}}, now=float(index))
    points = [point["index"] for point in history.points("a")]
    assert len(points) <= POINTS
    assert points == sorted(points)
    assert points[0] == 0
    assert points[-100:] == list(range(3 * POINTS - 100, 3 * POINTS))
    for index in range(5 * SNAPSHOTS):
        history.add_snapshots({"a": {"x": torch.zeros(1)}}, now=float(index))
    snapshots = history.snapshots("a")
    assert len(snapshots) <= SNAPSHOTS
    assert (snapshots[0], snapshots[-1]) == (0.0, 5.0 * SNAPSHOTS - 1)


def test_the_last_snapshot_before_a_time_is_taken_whatever_the_order_of_writing():
    history = History()
    for now in (100.0, 5.0, 200.0):
        history.add_snapshots({"a": {"x": torch.full((1,), now)}}, now=now)
        history.add_snapshots({"b": {"x": torch.full((1,), -1.0)}}, now=now)
    assert history.snapshots("a") == [5.0, 100.0, 200.0]
    for before, expected in ((5.0, 5.0), (99.0, 5.0), (150.0, 100.0), (1e9, 200.0)):
        assert history.snapshot("a", before)[1]["x"] == expected


def test_damage_is_named(tmp_path):
    history = History(tmp_path)
    history.add_snapshots({"a": {"x": torch.zeros(1)}}, now=1.0)
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
    with pytest.raises(StateFileError, match="in use by another server"):
        History(tmp_path)
    first.close()
    History(tmp_path).close()
