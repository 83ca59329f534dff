"""A cluster on which the tests of amazon-vpc-cni-k8s run as on their own, and the run of a suite on it.

The test programs run in the control plane's node. Their AWS endpoints are the lab's EC2 and EKS, and they reach nothing outside of the
lab.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import yaml

from lab.cluster import objects, programs
from lab.cluster.api import Object
from lab.cluster.cluster import ARCHIVE, IMAGE, NAMESPACE, Cluster
from lab.cluster.control_plane import FOLDER
from lab.cluster.upstream_tests import crds, eks, images, results
from lab.cluster.upstream_tests.daemonset import NAME, as_aws_node
from lab.cluster.upstream_tests.results import CaseResult
from lab.cluster.upstream_tests.suites import Suite
from lab.node.node import EC2_ADDRESS, REPOSITORY
from lab.node.process import BASE_ENVIRONMENT
from lab.vpc.family import IPV4, Family

INSTANCE_TYPE, MAX_PODS = "m5.large", 28
"""Type and most pods of a worker: 3 ENIs x (10 addresses - 1), and one pod of the host's network. The tests need three ENIs, and
create as many pods as there are addresses, so a type with more addresses would make them slower."""

TAG, CLUSTER_NAME = "upstream-tests", "lab"
EKS_PORT = 8001
MANIFEST = REPOSITORY / "manifests" / "base" / "daemonset.yaml"
START_TIMEOUT_S = 300.0
GRACE_S = 180.0
DRY_RUN_TIMEOUT_S = 60.0


class TestBed:
    """The cluster, and the suites that run on it. Concurrency: one thread."""

    __test__ = False  # pytest must not collect this class as tests

    def __init__(self, cluster: Cluster, *, tests: Path, rootfs: Path, output: Path, family: Family = IPV4) -> None:
        """Make the object; the cluster is not changed yet.

        Args:
            tests: the folder of the built tests.
            rootfs: the root file system of the images that stand in for the tests' images (tools/stand_in_rootfs.sh).
            output: the folder for reports and logs.
            family: the address family of the cluster.
        """
        self._cluster, self._family = cluster, family
        self._tests, self._rootfs, self._output = tests, rootfs, output

    def prepare(self) -> None:
        """Load the images, and install vpc-ipamd under the name aws-node, and the cluster DNS. Returns when all of it is ready."""
        cluster = self._cluster
        cluster.load_image(TAG, ARCHIVE)
        archive_path = self._output / "image.tar"
        for archive in images.archives(self._rootfs, self._tests / "agent"):
            archive_path.write_bytes(archive)
            for worker in cluster.workers.values():
                worker.load_image(archive_path)
        archive_path.unlink()
        for definition in crds.definitions():
            cluster.api.create(crds.COLLECTION, definition)
        cluster.api.create(objects.collection("daemonsets", namespace=NAMESPACE), self._daemonset())
        cluster.wait_nodes_ready(START_TIMEOUT_S)
        cluster.wait_rolled_out("daemonsets", NAME, namespace=NAMESPACE, timeout_s=START_TIMEOUT_S)
        self._label_nodes()
        for path, thing in objects.cluster_dns(family=self._family):
            cluster.api.create(path, thing)
        cluster.wait_rolled_out("deployments", "coredns", namespace=NAMESPACE, timeout_s=START_TIMEOUT_S)

    def run(self, suite: Suite, *, focus: str = "") -> list[CaseResult]:
        """Run a suite, at most for its `timeout_s`. `focus`: pattern; only cases whose name matches are run and in the results."""
        names = [name for name in dry_run(self._tests, suite, output=self._output) if re.search(focus, name)]
        with self._eks() as server:
            document = run_program(
                self._cluster,
                self._tests,
                suite,
                self._options(suite, focus),
                environment={eks.ENDPOINT_VARIABLE: server.url, "CLUSTER_NAME": CLUSTER_NAME},
                output=self._output,
            )
        return results.read_report(suite, document, names=names)

    def _eks(self) -> eks.EksServer:
        control = self._cluster.control
        description = eks.describe(
            self._cluster.lab.vpc,
            name=CLUSTER_NAME,
            endpoint=control.url,
            authority=control.authority,
            services=ip_network(control.addresses.cidr),
        )
        return eks.EksServer(description, socket=control.node.netns.listener(EC2_ADDRESS, EKS_PORT))

    def _options(self, suite: Suite, focus: str) -> list[str]:
        options = [f"--ginkgo.timeout={suite.timeout_s}s"]
        if suite.exclusions:
            options.append(f"--ginkgo.skip={'|'.join(exclusion.pattern for exclusion in suite.exclusions)}")
        if focus:
            options.append(f"--ginkgo.focus={focus}")
        subnet = self._cluster.lab.vpc.subnets()[0]
        return [*options, *(option.format(subnet=subnet.subnet_id, zone=subnet.az) for option in suite.options)]

    def _daemonset(self) -> Object:
        documents = yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8"))
        (manifest,) = (document for document in documents if document["kind"] == "DaemonSet")
        return as_aws_node(
            manifest,
            image=f"{IMAGE}:{TAG}",
            environment={**self._cluster.towards_the_lab(), "CLUSTER_NAME": CLUSTER_NAME},
            family=self._family,
        )

    def _label_nodes(self) -> None:
        for worker in self._cluster.workers.values():
            zone = self._cluster.lab.vpc.instance(worker.node.name).az
            of_type = dict.fromkeys(("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type"), INSTANCE_TYPE)
            labels = {**of_type, "topology.kubernetes.io/zone": zone}
            self._cluster.api.patch(f"/api/v1/nodes/{worker.name}", {"metadata": {"labels": labels}})


def run_program(
    cluster: Cluster, tests: Path, suite: Suite, options: list[str], *, environment: Mapping[str, str], output: Path
) -> list[dict[str, Any]]:
    """Run a suite's program in the control plane's node. It is killed GRACE_S after the suite's `timeout_s`.

    Args:
        environment: variables besides PATH, the kubeconfig and those that point to the lab's EC2.
    Returns: Ginkgo's report; empty if the program wrote none.
    """
    report, log_path = output / f"{suite.name}.report.json", output / f"{suite.name}.log"
    report.unlink(missing_ok=True)
    vpc = cluster.lab.vpc
    argv = [str(tests / "tests" / f"{suite.name}.test"), "--ginkgo.no-color", "--ginkgo.v", f"--ginkgo.json-report={report}"]
    argv += [
        *options,
        f"--cluster-kubeconfig={FOLDER}/admin.conf",
        f"--cluster-name={CLUSTER_NAME}",
        f"--aws-region={vpc.region}",
    ]
    argv += [f"--aws-vpc-id={vpc.vpc_id}", f"--test-image-registry={images.REGISTRY}"]
    path = f"{programs.PROGRAMS}:{BASE_ENVIRONMENT['PATH']}"
    whole = {"PATH": path, "KUBECONFIG": f"{FOLDER}/admin.conf", **cluster.towards_the_lab(), **environment}
    with log_path.open("wb") as log:
        process = cluster.control.node.spawn(argv, stdout=log, stderr=log, env=whole)
        try:
            process.wait(suite.timeout_s + GRACE_S)
        except subprocess.TimeoutExpired:
            programs.end(process)
    return read_document(report)


def dry_run(tests: Path, suite: Suite, *, output: Path) -> list[str]:
    """Return the names of a suite's cases. Its program lists them without running any."""
    report = output / f"{suite.name}.names.json"
    program = str(tests / "tests" / f"{suite.name}.test")
    subprocess.run(
        [program, "--ginkgo.dry-run", f"--ginkgo.json-report={report}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=DRY_RUN_TIMEOUT_S,
        check=False,
        cwd=output,
    )
    return results.case_names(read_document(report))


def read_document(report: Path) -> list[dict[str, Any]]:
    """Read a report of Ginkgo. Returns: an empty list if there is none."""
    if not report.exists():
        return []
    document: list[dict[str, Any]] = json.loads(report.read_text(encoding="utf-8"))
    return document
