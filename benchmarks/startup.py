"""How long neotta takes to start, beside `import torch` alone, and how many modules are loaded.

    python benchmarks/startup.py [--rounds 5]

Every measurement is a fresh interpreter; the commands take turns, so that a busy machine slows all of them. The goal:
`neotta methods` takes less than a second beyond importing torch.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

COUNT = "import sys; print(len(sys.modules), file=sys.stderr)"
COMMAND = "import sys; sys.argv = {words}\nfrom neotta.cli import main\ntry: main()\nexcept SystemExit: pass\n"
PROGRAMS = {
    "python": "",
    "import torch": "import torch",
    "import neotta; neotta.adapt": "import neotta; neotta.adapt",
    "neotta --help": COMMAND.format(words=["neotta", "--help"]),
    "neotta methods": COMMAND.format(words=["neotta", "methods"]),
}


def start(program: str) -> tuple[float, int]:
    """Seconds from start to end of a new interpreter, and the modules it had loaded."""
    before = time.perf_counter()
    code = f"{program}\n{COUNT}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return time.perf_counter() - before, int(done.stderr.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    for program in PROGRAMS.values():  # once unmeasured, so that all files are in the system's cache
        start(program)
    seconds: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    modules = {}
    for _ in range(rounds):
        for name, program in PROGRAMS.items():
            taken, modules[name] = start(program)
            seconds[name].append(taken)
    torch = statistics.median(seconds["import torch"])
    print(f"{'':<30}{'seconds':>9}{'of torch':>10}{'beyond it':>11}{'modules':>9}")
    for name, taken in seconds.items():
        median = statistics.median(taken)
        print(f"{name:<30}{median:>9.2f}{median / torch:>10.2f}{median - torch:>11.2f}{modules[name]:>9,}")


if __name__ == "__main__":
    main()
