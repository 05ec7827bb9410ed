"""`python -m tests.faults --minutes 30`: the fault suite again and again, each time with another seed."""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long (default 5); a round that has begun ends")
    parser.add_argument("--seed", type=int, help="of the first round (default: drawn); a failure prints its own")
    parser.add_argument("-k", metavar="WORDS", help="only tests whose names hold these words, as for pytest")
    given = parser.parse_args()
    seed = random.randrange(2**31) if given.seed is None else given.seed
    end, rounds = time.monotonic() + 60 * given.minutes, 0
    while not rounds or time.monotonic() < end:
        print(f"round {rounds + 1}: NEOTTA_FAULT_SEED={seed + rounds}", flush=True)
        words = [sys.executable, "-m", "pytest", "--all", "-q", "-p", "no:cacheprovider", str(Path(__file__).parent)]
        done = subprocess.run(
            [*words, *(["-k", given.k] if given.k else [])],
            env={**os.environ, "NEOTTA_FAULT_SEED": str(seed + rounds)},
            cwd=Path(__file__).resolve().parents[2],
        )
        if done.returncode:
            sys.exit(f"round {rounds + 1} failed: repeat it with NEOTTA_FAULT_SEED={seed + rounds}")
        rounds += 1
    print(f"{rounds} rounds without a failure")


if __name__ == "__main__":
    main()
