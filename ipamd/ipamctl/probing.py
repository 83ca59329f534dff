"""Make a probe from the daemon's settings and adapters, run it as the only probe of this node, and make its report.

`verbs/probe.py` imports this module only when the verb runs, because it imports botocore. Rejected: calling the daemon over its
socket, because the probe must not share the daemon's client, budget or failures, and must work without the daemon.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ipamd.cloud.client import Ec2Client, NotCalledError
from ipamd.cloud.errors import failed
from ipamd.cloud.metadata import ImdsMetadata
from ipamd.core.deadline import SystemClock
from ipamd.ipamctl.verb import RefusedError
from ipamd.model.eni_tags import CLUSTER_TAG, NO_MANAGE_TAG
from ipamd.model.words import printable
from ipamd.probe.calls import CHECK_CALLS, CLEANUP_CALLS, Calls
from ipamd.probe.report import as_dict
from ipamd.probe.run import run
from ipamd.probe.subject import ProbeSubject
from ipamd.settings import Settings

LINKS_DIR = Path("/sys/class/net")
LOCK = "probe.lock"
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def probe(settings: Settings, *, is_real: bool) -> dict[str, Any]:
    """Run the probe in the main thread. Returns: the report.

    Raises: CloudError if metadata or credentials are missing; RefusedError if another probe runs;
    OSError if the run directory cannot be used.
    """
    clock = SystemClock()
    metadata = ImdsMetadata(settings.cloud, clock=clock)
    with alone(settings.daemon.run_dir):
        identity = metadata.identity()
        client = Ec2Client(settings.cloud, region=lambda: identity.region)
        subject = ProbeSubject(
            Calls(sender(client), clock=clock, sleep=time.sleep),
            links=read_links,
            read_metadata=metadata.read,
            identity=identity,
            tags=eni_tags(settings),
            say=say,
            is_real=is_real,
            at=clock.now(),
        )
        if is_real:
            say(f"one ENI, at most {CHECK_CALLS + CLEANUP_CALLS} EC2 calls, a minute or two; Ctrl-C ends it and cleans up")
        with stopping(subject.calls.stop):
            run(subject)
            return as_dict(subject)


def read_links() -> frozenset[str]:
    """Read the MACs of the links of this network namespace. Raises: OSError."""
    macs = set()
    for name in os.listdir(LINKS_DIR):  # noqa: PTH208  # names are enough
        # A link may vanish meanwhile, and some names are files, such as bonding_masters.
        with suppress(FileNotFoundError, NotADirectoryError):
            macs.add((LINKS_DIR / name / "address").read_text().strip().lower())
    return frozenset(macs)


def eni_tags(settings: Settings) -> dict[str, str]:
    """Return the tags of the probe's ENI: NO_MANAGE_TAG, which makes the daemon and amazon-vpc-cni-k8s ignore the ENI, and the tags
    that the daemon sets, because IAM conditions of the account may require them."""
    tags = dict(settings.cloud.additional_tags)
    if settings.cloud.cluster_name:
        tags[CLUSTER_TAG] = settings.cloud.cluster_name
    return {**tags, NO_MANAGE_TAG: "true"}


def sender(client: Ec2Client) -> Callable[[str, Mapping[str, Any]], Mapping[str, Any]]:
    """Make the function that sends a call. It raises CloudError without credentials, and otherwise botocore's exceptions."""

    def send(api: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            return client.call_raw(api, params)
        except NotCalledError as exc:
            raise failed(api, "the probe", exc.failure).error from exc

    return send


@contextmanager
def alone(run_dir: Path) -> Iterator[None]:
    """Hold the lock that a node has for probes, because a second probe would delete the ENI of the first.

    Raises: RefusedError if another probe runs, OSError if the run directory cannot be used.
    """
    run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    with os.fdopen(os.open(run_dir / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise RefusedError(f"another probe runs on this node: it holds {run_dir / LOCK}") from exc
        yield


@contextmanager
def stopping(stop: Callable[[str], None]) -> Iterator[None]:
    """Call `stop` when a signal of SIGNALS arrives, so that the current call ends and the clean-up follows."""

    def handle(number: int, _frame: object) -> None:
        stop(f"stopped by {signal.Signals(number).name}")
        say("stopping; what was created is deleted first")

    before = {number: signal.signal(number, handle) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def say(sentence: str) -> None:
    """Print progress to standard error. If its reader is gone, as after a broken `kubectl exec`, that must not end the clean-up."""
    with suppress(OSError, ValueError, RuntimeError):  # RuntimeError: a signal came during a write to this stream
        print(f"ipamctl probe: {printable(sentence)}", file=sys.stderr, flush=True)
