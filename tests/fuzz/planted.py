"""A target with one defect of each kind, for tests of the runner: which case shows which is written in the case."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from random import Random

from fuzz.target import Case, Target, Violation, blob

KINDS = ("fine", "violation", "exception", "memory", "slow", "log", "stderr", "thread", "hang", "crash", "leak")
FINE, HANG_S = "fine", 15


class Planted(Target):
    """A case: `kind`, and `data`, of which only a `!` matters."""

    memory_bytes = 16 << 20
    cpu_s = 0.1
    batch = 10

    def __init__(self) -> None:
        self._is_left = False

    def generate(self, random: Random) -> Case:
        return {"kind": FINE, "data": random.randbytes(8)}

    def run(self, case: Case) -> None:
        kind = case["kind"]
        if kind == "violation" and b"!" in blob(case["data"]):
            raise Violation("planted", "a ! was given")
        if kind == "exception":
            raise KeyError("planted")
        if kind == "memory":
            bytearray(64 << 20)[::4096] = b"x" * (16 << 10)
        if kind == "slow":
            until = time.process_time() + 0.2
            while time.process_time() < until:
                continue
        if kind == "log":
            try:
                raise KeyError("planted")
            except KeyError:
                logging.getLogger("planted").exception("it failed")
        if kind == "stderr":
            sys.stderr.write("Traceback")
        if kind == "thread":
            thread = threading.Thread(target=lambda: [][1])
            thread.start()
            thread.join()
        if kind == "hang":
            time.sleep(120)
        if kind == "crash":
            os.kill(os.getpid(), 11)
        if kind == "leak":
            self._is_left = True

    def check(self) -> None:
        if self._is_left:
            self._is_left = False
            raise Violation("left", "something is left")


def make() -> Target:
    """Make the target."""
    return Planted()
