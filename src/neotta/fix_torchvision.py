"""`python -m neotta.fix_torchvision`: make `import timm` work in this environment, whatever is imported first.

`import neotta` protects imports that follow it. A program that imports timm or torchvision before neotta needs this
command once: if torchvision's operators do not load beside this torch, it writes a `.pth` file into the environment's
`site-packages`, with which every Python process starts with the same import hook. `--undo` removes the file.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from neotta._files import atomic

FILE = "neotta_torchvision.pth"
_LINE = "import neotta._torchvision; neotta._torchvision.install()\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser("python -m neotta.fix_torchvision", description=(__doc__ or "").split("\n\n")[1])
    parser.add_argument("--undo", action="store_true", help="remove the file again")
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(sysconfig.get_paths()["purelib"]),
        help="where to write it (default: site-packages of this environment)",
    )
    given = parser.parse_args(arguments)
    file: Path = given.folder / FILE
    if given.undo:
        file.unlink(missing_ok=True)
        print(f"{file} is removed")
    elif (error := _import_error()) is None:
        print("torchvision can be imported in this environment: nothing to do")
    elif "torchvision::nms does not exist" not in error:
        print(f"this command cannot help, torchvision fails with another error: {error}", file=sys.stderr)
        return 1
    else:
        with atomic(file) as part:
            part.write_text(_LINE, encoding="utf-8")
        print(f"{file} is written: torchvision, timm and transformers can now be imported in any order")
    return 0


def _import_error() -> str | None:
    """The last line of the error of `import torchvision` in a new process; None if there is none."""
    done = subprocess.run([sys.executable, "-c", "import torchvision"], capture_output=True, text=True)
    return None if done.returncode == 0 else (done.stderr.strip() or "no message").splitlines()[-1]


if __name__ == "__main__":
    sys.exit(main())
