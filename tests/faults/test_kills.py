"""kill -9 at random moments: what was saved is whole, whatever was under way."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import pytest

from neotta.neo.statefile import read_state

pytestmark = pytest.mark.slow

SAVER = """
import sys, torch
from neotta.neo.statefile import write_state
step = 0
while True:
    step += 1
    write_state(sys.argv[1], {"step": torch.full((20_000,), step)}, {"step": step})
    print(step, flush=True)
"""


def test_a_save_that_is_killed_leaves_a_whole_file_and_nothing_beside_it(tmp_path):
    seed = int(os.environ.get("NEOTTA_FAULT_SEED", random.randrange(2**32)))
    print(f"seed {seed}: repeat with NEOTTA_FAULT_SEED={seed}")
    chance, path = random.Random(seed), tmp_path / "state"
    for _ in range(6):
        with subprocess.Popen([sys.executable, "-c", SAVER, path], stdout=subprocess.PIPE, text=True) as saver:
            told = int(saver.stdout.readline())
            time.sleep(chance.uniform(0, 0.3))
            saver.send_signal(signal.SIGKILL)
            told = max([told, *map(int, saver.stdout.read().split("\n")[:-1])])
        tensors, about = read_state(path)
        assert about["step"] >= told, "saved, and lost"
        assert set(tensors["step"].tolist()) == {about["step"]}
    left = [entry.name for entry in tmp_path.iterdir()]
    assert len(left) <= 2, "each save removes what the killed ones before it have left"
