"""The daemon with shorter bounds and with mishaps of threads: `python -m tests.contract.daemon.mishaps_daemon` in its place.

A mishap is a file in the node's /run, which is its own: it begins when the file is there and ends with it.

    hang       grpcio's thread that hands requests out hangs at the next request, for ever, with grpcio's lock held
    raise      it is ended by an exception at the next request
    no-NAME    the thread NAME cannot be made
    end-NAME   the loop NAME is ended by an exception that none of its turns raised
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any

from ipamd import daemon
from ipamd.core.loop import Loop
from ipamd.rpc import watch
from ipamd.rpc.unreadable import UnreadableRequests
from ipamd.threads import RequestThreads

RUN = Path("/run")
IDLE_S = 0.2
SILENCE_S = 5.0
END_MAX_S = 3


def shorten() -> None:
    """The same rules in less time."""
    RequestThreads.idle_s = IDLE_S
    watch.SILENCE_S = SILENCE_S
    watch.CALL_S = 1.0
    watch.RETRY_S = 0.2
    watch.INTERVAL_S = 0.3
    watch.PROVEN_S = 0.3
    watch.REPORT_S = 2.0
    watch.UNWATCHED_S = 2.0
    daemon.END_MAX_S = END_MAX_S


def hand_out(intercept: Any) -> Any:
    """What grpcio's thread does for each request, with its mishap."""

    def intercept_or_hang(self: UnreadableRequests, continuation: Any, details: Any) -> Any:
        while (RUN / "hang").exists():
            time.sleep(3600)
        return intercept(self, continuation, details)

    return intercept_or_hang


def submit(submitted: Any) -> Any:
    """As the pool of the standard library does it when no thread can be made."""

    def submit_or_raise(self: RequestThreads, *args: Any, **kwargs: Any) -> Any:
        if (RUN / "raise").exists():
            raise RuntimeError("can't start new thread")
        return submitted(self, *args, **kwargs)

    return submit_or_raise


def start(started: Any) -> Any:
    """The system's limit of threads, for one name."""

    def start_or_refuse(self: threading.Thread) -> None:
        if (RUN / f"no-{self.name}").exists():
            raise RuntimeError("can't start new thread")
        started(self)

    return start_or_refuse


def take_turn(taken: Any) -> Any:
    """A loop that is ended between its turns."""

    def take_turn_or_end(self: Loop) -> float | None:
        if (RUN / f"end-{self.name.replace(' ', '-')}").exists():
            raise SystemExit("a mishap")
        return taken(self)  # type: ignore[no-any-return]

    return take_turn_or_end


if __name__ == "__main__":
    shorten()
    UnreadableRequests.intercept_service = hand_out(UnreadableRequests.intercept_service)  # type: ignore[method-assign]
    RequestThreads.submit = submit(RequestThreads.submit)  # type: ignore[method-assign]
    threading.Thread.start = start(threading.Thread.start)  # type: ignore[method-assign]
    Loop.take_turn = take_turn(Loop.take_turn)  # type: ignore[method-assign]
    sys.exit(daemon.main())
