"""Test the tests: make small wrong changes to the modules that numbers depend on, and report those nobody notices.

    python scripts/mutate.py                       # 30 changes of every module below
    python scripts/mutate.py rules metrics --sample 200 --seed 1
    python scripts/mutate.py metrics --sample 25 --seed 1 --unlike 0   # none of those that seed 0 draws

Runs on a copy of the project beside which there is no folder `shared/`, as a fresh clone is. A change that makes the
tests fail, or run much longer than before, is *killed*; one that no test notices *survives* and is printed. Changes
that change nothing (`equivalent_mutants.py` lists them, each with its reason) are not drawn.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from equivalent_mutants import EQUIVALENT
from mutants import Mutant, mutants
from mutation_session import judge_in_memory

ROOT = Path(__file__).resolve().parent.parent
MODULES: dict[str, tuple[str, list[str]]] = {
    "moments": ("neo/moments.py", ["neo/test_rules.py", "neo/test_moments.py", "neo/test_state_values.py"]),
    "stream-moments": (
        "neo/stream_moments.py",
        ["neo/test_stream_rule.py", "neo/test_stream_exchange.py", "neo/test_reference.py"],
    ),
    "shift-estimate": (
        "neo/shift_estimate.py",
        ["neo/test_shift_estimate.py", "neo/test_stream_rule.py", "neo/test_reference.py", "neo/test_fleet_start.py"],
    ),
    "label-prior": ("neo/label_prior.py", ["neo/test_stream_rule.py", "neo/test_reference.py"]),
    "rules": ("neo/rules.py", ["neo/test_rules.py", "neo/test_centroid.py"]),
    "stream-rule": ("neo/stream_rule.py", ["neo/test_stream_rule.py", "neo/test_neo_stream_head.py"]),
    "statistics": ("evaluate/statistics.py", ["evaluate/test_statistics.py"]),
    "keys": ("evaluate/run_keys.py", ["evaluate/test_run_keys.py"]),
    "records": ("evaluate/records.py", ["evaluate/test_records.py"]),
    "metrics": ("evaluate/metrics.py", ["evaluate/test_metrics.py"]),
    "orders": ("data/orders.py", ["data/test_orders.py"]),
    "order": ("data/order.py", ["data/test_orders.py"]),
    "severities": ("data/corruptions/parameters.py", ["data/test_severities.py"]),
    "corruptions": (
        "data/corruptions/registry.py",
        ["data/test_severities.py", "data/test_corruptions.py", "data/test_plugins.py"],
    ),
    "sqlite-store": ("neo/sqlite_store.py", ["neo/test_streams_disk.py", "neo/test_largest.py"]),
    "stream-cache": ("neo/stream_cache.py", ["neo/test_stream_cache.py"]),
    "files": ("_files.py", ["test_files.py", "faults/test_injected_errors.py"]),
}
"""What is changed, and the tests that should notice it."""


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", help=f"some of: {', '.join(MODULES)} (default: all)")
    parser.add_argument("--sample", type=int, default=30, help="changes per module (default 30; 0 for all)")
    parser.add_argument("--seed", type=int, default=0, help="which changes are drawn (default 0)")
    parser.add_argument("--unlike", type=int, nargs="+", default=[], help="draw none that these seeds draw")
    parser.add_argument("--json", type=Path, help="write the results to this file, too")
    given = parser.parse_args()
    if unknown := set(given.modules) - set(MODULES):
        parser.error(f"unknown modules: {', '.join(sorted(unknown))}; known: {', '.join(MODULES)}")
    _warm_up()
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        clone = _clone(Path(folder) / "project")
        for name in given.modules or MODULES:
            every = candidates(name)
            results[name] = _judge(name, clone, draw(every, given.sample, given.seed, given.unlike), len(every))
            if given.json:
                given.json.write_text(json.dumps(results, indent=2))
    made, alive = sum(r["made"] for r in results.values()), sum(len(r["alive"]) for r in results.values())
    print(f"all: {alive} of {made} changes survive ({100 * alive / max(made, 1):.1f} %), seed {given.seed}")


def candidates(name: str) -> list[Mutant]:
    """All mutants of a module that are wrong: those known to change nothing are left out."""
    source = (ROOT / "src/neotta" / MODULES[name][0]).read_text()
    return [mutant for mutant in mutants(source) if mutant.change not in EQUIVALENT.get(name, {})]


def draw(every: list[Mutant], sample: int, seed: int, unlike: list[int]) -> list[Mutant]:
    """A sample of the mutants (0 for all), without those that the seeds `unlike` draw, in the order of their lines."""
    seen = {mutant for other in unlike for mutant in draw(every, sample, other, [])}
    left = [mutant for mutant in every if mutant not in seen]
    return sorted(left if sample == 0 else random.Random(seed).sample(left, min(sample, len(left))))


def _warm_up() -> None:
    """Import what takes long, once: every run of the tests is a fork of this process."""
    os.environ |= {"OMP_NUM_THREADS": "1", "NEOTTA_SHARED": "absent"}
    sys.dont_write_bytecode = True
    import hypothesis.strategies
    import pandas
    import pytest
    import safetensors.torch
    import scipy.stats
    import torch

    torch.set_num_threads(1)
    del hypothesis, pandas, pytest, safetensors, scipy


def _clone(folder: Path) -> Path:
    """A copy of the project, compiled, so that only what is changed has to be compiled again."""
    left_out = shutil.ignore_patterns(".git", "__pycache__", ".*cache", "docs", ".venv")
    shutil.copytree(ROOT, folder, ignore=left_out, symlinks=True)
    for part in ("src", "tests"):
        compileall.compile_dir(folder / part, quiet=1)
    return folder


def _judge(name: str, clone: Path, drawn: list[Mutant], of: int) -> dict[str, object]:
    """Test some mutants of one module."""
    file, tests = MODULES[name]
    path, folder = clone / "src/neotta" / file, clone.parent
    module = "neotta." + file.removesuffix(".py").replace("/", ".")
    tests = [f"tests/{test}" for test in tests]
    source = path.read_text()
    began = time.monotonic()
    found = judge_in_memory(module, path, drawn, tests, folder, folder / "log")
    if not found.passed:
        sys.exit(f"{name}: the tests fail without any change\n{(folder / 'log').read_text()}")
    alive = [drawn[place] for place in found.alive]
    for stale in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
        stale.unlink()  # a mutant of the same second and size would be taken for it
    for place in found.left:
        path.write_text(drawn[place].source)
        if judge_in_memory(module, path, [], tests, folder, folder / "log").passed:
            alive.append(drawn[place])
    path.write_text(source)
    for mutant in sorted(alive):
        print(f"  {name}: survives  {file}:{mutant.line}: {mutant.change}")
    share, seconds = 100 * len(alive) / max(len(drawn), 1), time.monotonic() - began
    print(f"{name}: {len(alive)} of {len(drawn)} drawn from {of} survive ({share:.1f} %), {seconds:.0f} s", flush=True)
    return {"made": len(drawn), "alive": [[mutant.line, mutant.change] for mutant in sorted(alive)], "of": of}


if __name__ == "__main__":
    main()
