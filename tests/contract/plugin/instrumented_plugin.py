"""Run the plugin's main flow behind a seam that a test controls. Not a test; started as a process by the fixture `instrumented`.

CLOCK_FACTOR: how much faster than real time the plugin's clock runs, so that a deadline of 60 s is over in a fraction of one.
HALT_AT: "name" or "name:n": before the n-th (first) call of that seam function say "halted" on standard error and wait to be
killed.
FAIL_AT: "name:errno": that seam function fails with this errno on every call.
"""

import os
import signal
import sys

from cni_plugin import _cni, vpc_cni

FACTOR = int(os.environ.get("CLOCK_FACTOR", "1"))
HALT_NAME, _, HALT_COUNT = os.environ.get("HALT_AT", "").partition(":")
FAIL_NAME, _, FAIL_ERRNO = os.environ.get("FAIL_AT", "").partition(":")


class System:
    """`_cni` with time and failures in the test's hands."""

    def __init__(self):
        self.calls = {}

    def __getattr__(self, name):
        function = getattr(_cni, name)

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
        return _cni.monotonic_ms() * FACTOR

    def sleep_ms(self, duration_ms):
        _cni.sleep_ms(duration_ms / FACTOR)

    def read(self, fd, count, wait_ms):
        return self.__getattr__("read")(fd, count, wait_ms / FACTOR)

    def write(self, fd, data, wait_ms):
        return self.__getattr__("write")(fd, data, wait_ms / FACTOR)


sys.exit(vpc_cni.run(System()))
