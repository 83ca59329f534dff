"""Set the environment variables that grpcio's core reads when `grpc` is imported. Programs call `prepare_grpc` before that import.

The daemon and `ipamctl` import this module. It imports no module of these programs, and not `grpc`.
"""

from __future__ import annotations

import os

DEFAULTS = {
    # Each of gRPC's two queues wakes up every 0.2 s. With epoll each wake-up also woke the other queue, which took a tenth of an idle
    # daemon's CPU time.
    "GRPC_POLL_STRATEGY": "poll",
    # The core logs to standard error and quotes a peer's text with its line breaks and escape sequences, so a peer could forge lines
    # of our log. Nothing is lost: the error of a call has the same text, which we make safe to print.
    "GRPC_VERBOSITY": "NONE",
}
"""Values of the variables that the process does not have already."""


def prepare_grpc() -> None:
    """Set the variables of DEFAULTS that the process does not have yet. Call it before the first import of `grpc`."""
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
