"""What a case may not cause anywhere in the process: tracebacks in logs, on standard error and in threads, and growth."""

from __future__ import annotations

import io
import logging
import re
import resource
import sys
import threading
import time
import traceback
from pathlib import Path

from fuzz.target import Violation

DATA_BYTES_MAX = 2 << 30
"""Of the worker's private memory (RLIMIT_DATA): a bomb ends the worker, not the machine."""

KIB = 1024


class _Handler(logging.Handler):
    def __init__(self, seen: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._seen = seen

    def emit(self, record: logging.LogRecord) -> None:
        """Take note of what has a traceback, or what nobody has a name for."""
        text = record.getMessage()  # a wrong format string raises here, and that is a finding too
        if record.exc_info and record.exc_info[1] is not None:
            trace = "".join(traceback.format_exception(record.exc_info[1])[-2:])
            self._seen.append(f"log of {record.name}: {text[:200]}: {trace[-600:]}")


class Watch:
    """Collects tracebacks from everywhere, and measures memory and CPU time of each case."""

    def __init__(self, *, memory_bytes: int, cpu_s: float) -> None:
        self._memory_bytes = memory_bytes
        self._cpu_s = cpu_s
        self._seen: list[str] = []
        self._errors = io.StringIO()
        self._floor_bytes = 0
        self._started_s = 0.0

    def install(self) -> None:
        """Begin; standard error of Python is kept from now on, not printed."""
        resource.setrlimit(resource.RLIMIT_DATA, (DATA_BYTES_MAX, resource.getrlimit(resource.RLIMIT_DATA)[1]))
        logging.getLogger().addHandler(_Handler(self._seen))
        logging.getLogger().setLevel(logging.INFO)
        logging.raiseExceptions = True
        threading.excepthook = lambda args: self._seen.append(f"thread: {_last(args.exc_value)}")
        sys.unraisablehook = lambda args: self._seen.append(f"unraisable: {_last(args.exc_value)}")
        sys.stderr = self._errors
        self.settle()

    def settle(self) -> None:
        """Take the present size as the one to grow from."""
        self._floor_bytes = _resident_bytes()
        _forget_peak()

    def before(self) -> None:
        """Start measuring a case."""
        self._started_s = time.process_time()

    def after(self) -> None:
        """Judge it. Raises: Violation."""
        took_s = time.process_time() - self._started_s
        grown = _peak_bytes(above=self._floor_bytes + self._memory_bytes) - self._floor_bytes
        if grown > self._memory_bytes:
            self.settle()
            raise Violation("memory", f"grew by {grown >> 20} MiB, {self._memory_bytes >> 20} are allowed")
        if took_s > self._cpu_s:
            raise Violation("slow", f"took {took_s:.2f} s of CPU, {self._cpu_s} are allowed")
        self.raise_if_seen()

    def raise_if_seen(self) -> None:
        """Raises: Violation if a traceback was logged or printed since the last call."""
        if self._errors.tell():
            text = self._errors.getvalue()
            self._errors.seek(0)
            self._errors.truncate()
            self._seen.append(f"standard error: {text[-600:]}")
        if self._seen:
            seen = self._seen[0]
            self._seen.clear()
            # The last line names the exception; numbers and quoted input differ from case to case.
            raise Violation("traceback", seen, signature=re.sub(r"\d+|'.*?'", "", seen.strip().splitlines()[-1])[:40])


def _last(error: BaseException | None) -> str:
    return "".join(traceback.format_exception(error)[-3:]) if error is not None else ""


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _peak_bytes(*, above: int) -> int:
    """Return the largest size since `_forget_peak`, or any bound of it that is not `above`.

    ru_maxrss is quick to read, but never falls, and begins with the size of the process that started this one.
    """
    bound = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB
    if bound <= above:
        return bound
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found.group(1)) * KIB if found else bound


def _forget_peak() -> None:
    """Let VmHWM begin anew at the present size (proc(5), clear_refs, value 5)."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return  # not allowed here: the peak stays, and one bomb hides later ones
