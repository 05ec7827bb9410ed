"""A cluster that the engine starts is for this machine alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/net/tcp6").exists(), reason="needs Linux, to see which sockets are open"),
]

STARTS = """
import os, pathlib, sys, warnings
warnings.simplefilter("ignore")
sys.path.insert(0, sys.argv[1])
from neotta.evaluate.engines.ray import package, start

def family(process):
    told = [line.split() for line in os.popen("ps -e -o pid=,ppid=")]
    found = [str(process)]
    for parent in found:
        found += [child for child, of in told if of == parent]
    return found

def listening(processes):
    mine = {}
    for process in processes:
        for link in pathlib.Path("/proc", process, "fd").glob("*"):
            try:
                mine[os.readlink(link)] = pathlib.Path("/proc", process, "comm").read_text().strip()
            except OSError:
                pass  # closed, or ended, meanwhile
    for table in ("tcp", "tcp6"):
        for line in pathlib.Path("/proc/net", table).read_text().splitlines()[1:]:
            parts = line.split()
            if parts[3] == "0A" and f"socket:[{parts[9]}]" in mine:
                yield mine[f"socket:[{parts[9]}]"], parts[1].split(":")[0]

ray = package()
start(ray)

@ray.remote
def answer():
    return 1

assert ray.get(answer.remote()) == 1
print(*(f"{name} {address}" for name, address in listening(family(os.getpid()))), sep="\\n")
ray.shutdown()
"""
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}


def test_nothing_listens_on_other_interfaces(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    src = Path(__file__).resolve().parents[2] / "src"
    done = subprocess.run([sys.executable, "-c", STARTS, src], capture_output=True, text=True, timeout=180, check=True)
    sockets = [line.rsplit(" ", 1) for line in done.stdout.splitlines()]
    assert {"raylet", "gcs_server"} <= {name for name, _ in sockets}
    assert [name for name, address in sockets if address not in LOOPBACK] == []
