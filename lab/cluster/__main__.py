"""`python -m lab.cluster`: build a cluster, install vpc-ipamd, and check it step by step (`story.py`).

The results are in build/cluster.json and in the exit status.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from lab.cluster import programs
from lab.cluster.cluster import ARCHIVE, Cluster, Release
from lab.cluster.report import Report
from lab.cluster.story import STEPS, Story
from lab.cluster.watcher import Watcher
from lab.errors import LabError
from lab.node.node import REPOSITORY

BUILD = REPOSITORY / "build"
BEFORE = BUILD / "cluster-before"
EXIT_FAILED, EXIT_NO_CLUSTER = 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Build the cluster and run the steps. Returns: the exit status: 0 if all verdicts hold, 1 if not, 2 if no cluster could be
    built."""
    parser = argparse.ArgumentParser(prog="python -m lab.cluster", description="Kubernetes on two lab nodes, with vpc-ipamd.")
    parser.add_argument("--output", type=Path, default=BUILD / "cluster.json")
    parser.add_argument("--only", nargs="+", choices=STEPS, default=(), metavar="STEP", help=f"of: {', '.join(STEPS)}")
    options = parser.parse_args(argv)
    report = Report()
    logs = options.output.with_suffix(".logs")
    shutil.rmtree(logs, ignore_errors=True)
    try:
        with Cluster() as cluster:
            _play(cluster, report, logs, options.only)
    except LabError as error:
        print(f"cluster: {error}", file=sys.stderr)
        report.check("a cluster can be built", False, str(error))
        report.write(options.output)
        return EXIT_NO_CLUSTER
    report.write(options.output)
    failed = [verdict.name for verdict in report.verdicts if not verdict.ok]
    print(f"cluster: {len(report.verdicts) - len(failed)} of {len(report.verdicts)} verdicts hold; {options.output}")
    if failed:
        print(f"cluster: logs of all programs: {logs}", file=sys.stderr)
    return EXIT_FAILED if failed or not report.is_good else 0


def _play(cluster: Cluster, report: Report, logs: Path, only: Collection[str]) -> None:
    now = Release(REPOSITORY / "manifests" / "chart", "now")
    before = Release(BEFORE / "chart", "before") if (BEFORE / "COMMIT").exists() else None
    version = json.loads(cluster.kubectl("version", "--output", "json"))["serverVersion"]["gitVersion"]
    containerd = next(iter(cluster.nodes.values())).run([str(programs.CONTAINERD / "containerd"), "--version"]).stdout.split()[2]
    report.figures |= {"kubernetes": version, "containerd": containerd}
    report.check("a cluster of two nodes is built", True, f"Kubernetes {version}, containerd {containerd}")
    cluster.load_image(now.tag, ARCHIVE)
    if before is not None:
        cluster.load_image(before.tag, next(BEFORE.glob("*.tar")))
    cluster.install(now)
    watcher = Watcher(cluster.api, cluster.nodes)
    try:
        Story(cluster, watcher, report, now=now, before=before).run(only)
    finally:
        watcher.close()
        if not report.is_good:
            cluster.keep_logs(logs)


if __name__ == "__main__":
    sys.exit(main())
