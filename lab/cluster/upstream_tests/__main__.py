"""`python -m lab.cluster.upstream_tests TESTS`: run the integration tests of amazon-vpc-cni-k8s.

It prints a table and writes build/upstream-tests/results.json.

TESTS is a folder with the built tests, which belong to amazon-vpc-cni-k8s and are not part of this project: `tests/SUITE.test` for
each suite of its test/integration, and `agent/NAME` for each program of its test/agent/cmd. All are static programs.
tools/upstream_tests.sh makes such a folder.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from lab.cluster.cluster import Cluster
from lab.cluster.upstream_tests import results
from lab.cluster.upstream_tests.bed import INSTANCE_TYPE, MAX_PODS, TestBed, dry_run
from lab.cluster.upstream_tests.results import CaseResult
from lab.cluster.upstream_tests.suites import SUITES, Suite, suite
from lab.errors import LabError
from lab.lab import IPV6_CIDR
from lab.node.node import REPOSITORY
from lab.vpc.family import FAMILIES, Family
from lab.vpc.state import Vpc

OUTPUT = REPOSITORY / "build" / "upstream-tests"
PAGE = REPOSITORY / "docs" / "upstream_tests.md"
VPC_CIDRS = "10.0.0.0/16,100.64.0.0/16"
"""The VPC's CIDR blocks. The tests of subnet discovery make subnets in the second block. They would associate it with the VPC if it
were missing, which the lab cannot do."""

PREFIXES = {"ENABLE_PREFIX_DELEGATION": "true"}
GIT_TIMEOUT_S = 30.0
EXIT_FAILED, EXIT_NO_CLUSTER = 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the suites. Returns: the exit status: 0 if no case failed, 1 if one failed, 2 if no cluster could be built or tests are
    missing."""
    parser = argparse.ArgumentParser(
        prog="python -m lab.cluster.upstream_tests", description="Run the tests of amazon-vpc-cni-k8s."
    )
    parser.add_argument("tests", type=Path, help="folder of the built tests")
    parser.add_argument("--suites", nargs="+", choices=[known.name for known in SUITES], default=[known.name for known in SUITES])
    parser.add_argument("--focus", default="", help="cases whose name matches; results of others stay as they are")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--record", action="store_true", help="put the table of all results into docs/upstream_tests.md")
    parser.add_argument(
        "--prefixes",
        action="store_true",
        help="the nodes begin with ENABLE_PREFIX_DELEGATION=true, so no test finds single addresses",
    )
    options = parser.parse_args(argv)
    tests, output = options.tests.resolve(), options.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    chosen = [suite(name) for name in options.suites]
    if lacking := [known.name for known in chosen if not (tests / "tests" / f"{known.name}.test").exists()]:
        print(f"upstream-tests: {tests}/tests has no program of: {', '.join(lacking)}", file=sys.stderr)
        return EXIT_NO_CLUSTER
    record = output / "results.json"
    for known in chosen:
        if known.reason:
            results.write(record, results.left_out(known, dry_run(tests, known, output=output), known.reason))
    try:
        settings = PREFIXES if options.prefixes else {}
        cases = _run([known for known in chosen if not known.reason], tests, output, record, options.focus, settings)
    except LabError as error:
        print(f"upstream-tests: {error}", file=sys.stderr)
        return EXIT_NO_CLUSTER
    print(results.table(results.read(record)))
    if options.record:
        results.record(PAGE, results.read(record))
    return EXIT_FAILED if any(case.state is results.State.FAILED for case in cases) else 0


def _run(
    suites: Sequence[Suite], tests: Path, output: Path, record: Path, focus: str, settings: Mapping[str, str]
) -> list[CaseResult]:
    cases: list[CaseResult] = []
    for family in FAMILIES:
        of_family = [known for known in suites if known.family is family]
        if of_family:
            cases += _run_on_one_cluster(of_family, tests, output, record, focus, family, settings)
    return cases


def _run_on_one_cluster(
    suites: Sequence[Suite], tests: Path, output: Path, record: Path, focus: str, family: Family, settings: Mapping[str, str]
) -> list[CaseResult]:
    cases: list[CaseResult] = []
    commit = _commit()
    spares = {known.name: known.node_group for known in suites if known.node_group}
    with Cluster(
        instance_type=INSTANCE_TYPE,
        max_pods=MAX_PODS,
        vpc=Vpc(cidr=VPC_CIDRS, ipv6_cidr=IPV6_CIDR),
        names_by_dns=True,
        has_helm=False,
        has_two_zones=True,
        family=family,
        spares=spares,
    ) as cluster:
        rootfs = OUTPUT / "rootfs.tar"
        test_bed = TestBed(cluster, tests=tests, rootfs=rootfs, output=output, family=family, settings=settings, spares=spares)
        try:
            with test_bed:
                test_bed.prepare(suites)
                for known in suites:
                    print(f"upstream-tests: {known.name}", flush=True)
                    cases += [replace(case, commit=commit) for case in test_bed.run(known, focus=focus)]
                    results.write(record, cases)
        finally:
            cluster.keep_logs(output / f"logs-ipv{family.version}")
    return cases


def _commit() -> str:
    """Return the short name of the checked out commit, with "-dirty" if tracked files differ; "" outside of a clone."""
    argv = ["git", "-C", str(REPOSITORY), "describe", "--always", "--dirty", "--exclude=*", "--abbrev=8"]
    return subprocess.run(argv, capture_output=True, text=True, timeout=GIT_TIMEOUT_S, check=False).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
