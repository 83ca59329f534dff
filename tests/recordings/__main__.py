"""Record lab nodes: `python -m tests.recordings [--at-once N] [NAME ...]`, as root; about six minutes for each.

`assignments` is no series of metrics but lines of the log.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from tests.recordings import assignments
from tests.recordings.series import write
from tests.recordings.stage import recording, stage
from tests.recordings.troubles import Scenario, by_name


def record(one: Scenario) -> str:
    """Play a scenario and write its file. Returns: a line that says so, or what failed."""
    began_s = time.monotonic()
    try:
        with stage(
            seed=one.seed,
            env=one.env,
            interval_s=one.interval_s,
            speed=one.speed,
            start=one.start,
            play_on=one.play_on,
            **dict(one.options),
        ) as at:
            one.play(at)
            path = write(recording(at, name=one.name, what=one.what, steady=one.steady))
    except Exception as error:  # noqa: BLE001  # the others are recorded all the same; the exit status says it
        return f"FAILED {one.name}: {type(error).__name__}: {error}"
    return f"{one.name}: {len(at.up)} scrapes, {path.stat().st_size} bytes, {time.monotonic() - began_s:.0f} s"


def main() -> int:
    """Record. Returns: the exit status, 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.recordings", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--at-once", type=int, default=6, metavar="N")
    options = parser.parse_args()
    if assignments.NAME in options.names or not options.names:
        sys.stdout.write(f"{assignments.record()}\n")
        options.names = [name for name in options.names if name != assignments.NAME]
        if not options.names and len(sys.argv) > 1:
            return 0
    with ThreadPoolExecutor(max_workers=options.at_once) as workers:
        lines = []
        for line in workers.map(record, by_name(options.names)):
            lines.append(line)
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
    return int(any(line.startswith("FAILED") for line in lines))


if __name__ == "__main__":
    sys.exit(main())
