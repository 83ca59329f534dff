"""Run the plugin's main flow behind a seam that a test controls. Not a test; started as a process by the fixture `instrumented`.

WAIT_FACTOR: a wait that nothing ends is that many times shorter, and the plugin's clock jumps over the rest: a deadline of 60 s
is over in a fraction of that, and what the plugin does between its waits costs no more of it than it would without.
WAITED_MS: file that gets, at the end, how long the plugin waited for nothing, by its own clock.
HALT_AT: "name" or "name:n": before the n-th (first) call of that seam function say "halted" on standard error and wait to be
killed.
FAIL_AT: "name:errno": that seam function fails with this errno on every call.
"""

import errno
import os
import signal
import sys

from cni_plugin import _cni, vpc_cni

REAL = _cni.System()

FACTOR = float(os.environ.get("WAIT_FACTOR", "1"))
HALT_NAME, _, HALT_COUNT = os.environ.get("HALT_AT", "").partition(":")
FAIL_NAME, _, FAIL_ERRNO = os.environ.get("FAIL_AT", "").partition(":")


class System:
    """`_cni.System` with time and failures in the test's hands."""

    def __init__(self):
        self.calls = {}
        self.waited_ms = 0
        self.skipped_ms = 0

    def __getattr__(self, name):
        function = getattr(REAL, name)

        def call(*arguments):
            self.calls[name] = self.calls.get(name, 0) + 1
            if name == HALT_NAME and self.calls[name] == int(HALT_COUNT or 1):
                os.write(2, b"halted\n")
                signal.pause()
            if name == FAIL_NAME:
                raise OSError(int(FAIL_ERRNO), os.strerror(int(FAIL_ERRNO)))
            return function(*arguments)

        return call

    def monotonic_ms(self):
        return REAL.monotonic_ms() + int(self.skipped_ms)

    def sleep_ms(self, duration_ms):
        REAL.sleep_ms(duration_ms / FACTOR)
        self.jump(duration_ms)

    def read(self, fd, count, wait_ms):
        return self.bounded("read", fd, count, wait_ms)

    def write(self, fd, data, wait_ms):
        return self.bounded("write", fd, data, wait_ms)

    def bounded(self, name, fd, what, wait_ms):
        try:
            return self.__getattr__(name)(fd, what, wait_ms / FACTOR)
        except OSError as exc:
            if exc.errno == errno.ETIMEDOUT:
                self.jump(max(wait_ms, 0))
            raise

    def jump(self, waited_ms):
        self.waited_ms += waited_ms
        self.skipped_ms += waited_ms - waited_ms / FACTOR


system = System()
status = vpc_cni.run(system)
if "WAITED_MS" in os.environ:
    with open(os.environ["WAITED_MS"], "w") as waited:
        waited.write(str(system.waited_ms))
sys.exit(status)
