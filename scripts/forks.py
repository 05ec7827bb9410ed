"""Call a function in a fork of this process."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable


def succeeds(function: Callable[[], bool], limit: float) -> bool:
    """Whether a function returns True within so many seconds; it runs in a process of its own, with all it starts."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setsid()
            code = 0 if function() else 1
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)  # never back into the loop of the parent
    end = time.monotonic() + limit
    pause = 0.005
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status == 0
        time.sleep(pause)
        pause = min(0.1, pause * 1.5)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False
