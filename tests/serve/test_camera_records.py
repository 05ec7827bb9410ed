"""History, alarms and snapshots of cameras: lasting, and bounded."""

from __future__ import annotations

import pytest
import torch

from neotta.deploy.serve.records import ALARMS, FILE, POINTS, SNAPSHOTS, Camera, Records
from neotta.errors import StateFileError, StorageError


def test_records_last(tmp_path):
    records = Records(tmp_path)
    records.describe("gate", name="Front gate")
    records.describe("gate", frozen=True)
    records.add_points({"gate": {"shift": 0.5}}, now=10.0)
    records.add_alarm("gate", {"kind": "change"}, now=11.0)
    records.add_snapshot("gate", {"head.mean": torch.arange(3.0)}, now=12.0)
    records.close()
    records = Records(tmp_path)
    assert records.camera("gate") == Camera("Front gate", True)
    assert records.camera("other") == Camera("other", False)
    assert records.history("gate") == [{"time": 10.0, "shift": 0.5}]
    assert records.alarms("gate") == [{"time": 11.0, "kind": "change"}]
    assert records.snapshot("gate", 11.9) is None
    time, state = records.snapshot("gate", 99.0)
    assert (time, state["head.mean"].tolist()) == (12.0, [0.0, 1.0, 2.0])
    records.forget("gate")
    assert (records.history("gate"), records.alarms("gate"), records.snapshots("gate")) == ([], [], [])


def test_everything_is_bounded_and_the_new_is_kept():
    records = Records()
    for index in range(3 * POINTS):
        records.add_points({"a": {"index": index}}, now=float(index))
    history = [point["index"] for point in records.history("a")]
    assert len(history) <= POINTS
    assert history == sorted(history)
    assert history[0] == 0
    assert history[-100:] == list(range(3 * POINTS - 100, 3 * POINTS))
    for index in range(ALARMS + 50):
        records.add_alarm("a", {"index": index})
    assert [alarm["index"] for alarm in records.alarms("a")] == list(range(50, ALARMS + 50))
    for index in range(5 * SNAPSHOTS):
        records.add_snapshot("a", {"x": torch.zeros(1)}, now=float(index))
    snapshots = records.snapshots("a")
    assert len(snapshots) <= SNAPSHOTS
    assert (snapshots[0], snapshots[-1]) == (0.0, 5.0 * SNAPSHOTS - 1)


def test_a_clock_that_jumps_loses_nothing():
    records = Records()
    for now in (100.0, 5.0, 200.0):
        records.add_points({"a": {"at": now}}, now=now)
        records.add_snapshot("a", {"x": torch.full((1,), now)}, now=now)
    assert [point["at"] for point in records.history("a")] == [100.0, 5.0, 200.0]
    assert records.snapshot("a", 150.0)[1]["x"] == 100.0


def test_damage_is_named(tmp_path):
    (tmp_path / FILE).write_bytes(b"this is no database, " * 100)
    with pytest.raises(StateFileError, match="damaged"):
        Records(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError):
        Records(tmp_path / "file")
