"""A cluster on which the tests of amazon-vpc-cni-k8s run as on their own, and the run of a suite on it.

The test programs run in the control plane's node. Their AWS endpoints are the lab's EC2 and EKS, and they reach nothing outside of the
lab.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from ipaddress import ip_network
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

import yaml

from lab.cluster import objects, programs
from lab.cluster.api import Object
from lab.cluster.cluster import ARCHIVE, IMAGE, NAMESPACE, Cluster
from lab.cluster.control_plane import FOLDER
from lab.cluster.upstream_tests import crds, eks, iam, images, node_groups, results
from lab.cluster.upstream_tests.daemonset import NAME, as_aws_node
from lab.cluster.upstream_tests.node_groups import NodeGroups
from lab.cluster.upstream_tests.query_api import QueryApi
from lab.cluster.upstream_tests.results import CaseResult
from lab.cluster.upstream_tests.suites import Need, Suite
from lab.cluster.upstream_tests.website import NAMES, Website
from lab.cluster.worker import Worker
from lab.errors import LabError
from lab.httpd import Listener
from lab.node.node import EC2_ADDRESS, REPOSITORY
from lab.node.process import BASE_ENVIRONMENT
from lab.vpc.family import IPV4, Family
from lab.vpc.limits import InstanceLimits

INSTANCE_TYPE, MAX_PODS = "m5.large", 28
"""Type and most pods of a worker: 3 ENIs x (10 addresses - 1), and one pod of the host's network. The tests need three ENIs, and
create as many pods as there are addresses, so a type with more addresses would make them slower."""

TAG, TAG_BEFORE, CLUSTER_NAME = "now", "before", "lab"
EKS_PORT, IAM_PORT, CLOUDFORMATION_PORT = 8001, 8002, 8003
MANIFEST = REPOSITORY / "manifests" / "base" / "daemonset.yaml"
BEFORE = REPOSITORY / "build" / "cluster-before"
"""Folder with the image of an earlier commit, which tools/image_before.sh makes."""

THEIR_ROOT = "amazon-vpc-cni-k8s"
"""The tests look for their folder testdata in the first folder of their program's path that has this name."""

START_TIMEOUT_S = 300.0
GRACE_S = 180.0
DRY_RUN_TIMEOUT_S = 60.0


class TestBed:
    """The cluster, and the suites that run on it. Concurrency: one thread."""

    __test__ = False  # pytest must not collect this class as tests

    def __init__(
        self,
        cluster: Cluster,
        *,
        tests: Path,
        rootfs: Path,
        output: Path,
        family: Family = IPV4,
        settings: Mapping[str, str] = MappingProxyType({}),
        spares: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Make the object; the cluster is not changed yet.

        Args:
            tests: the folder of the built tests.
            rootfs: the root file system of the images that stand in for the tests' images (tools/stand_in_rootfs.sh).
            output: the folder for reports and logs.
            family: the address family of the cluster.
            settings: further variables of the daemon.
            spares: the cluster's spare nodes: name -> instance type. The name is that of the suite that launches the node.
        """
        self._cluster, self._family = cluster, family
        self._tests, self._rootfs, self._output = tests, rootfs, output
        self._settings, self._spares = dict(settings), dict(spares)
        self._images: list[tuple[Path, str]] = []
        self._stack = ExitStack()
        self._groups = NodeGroups(cluster.lab.vpc, spares, launch=self._launch, terminate=cluster.terminate)

    def __enter__(self) -> TestBed:
        return self

    def __exit__(self, *exc: object) -> None:
        self._groups.close()
        self._stack.close()

    def prepare(self, suites: Sequence[Suite]) -> None:
        """Load the images, and install vpc-ipamd under the name aws-node, the cluster DNS, and what these suites need besides.
        Returns when all of it is ready."""
        cluster, needs = self._cluster, {need for suite in suites for need in suite.needs}
        has_internet = Need.INTERNET in needs
        if has_internet:
            self._stack.enter_context(Website(cluster.lab.add_internet().outside, cluster.control.node))
        self._images = [(ARCHIVE, f"{IMAGE}:{TAG}"), *self._stand_ins()]
        if Need.EARLIER_IMAGE in needs:
            self._images.append((_earlier_image(), f"{IMAGE}:{TAG_BEFORE}"))
        for archive, reference in self._images:
            for worker in cluster.workers.values():
                worker.load_image(archive, reference=reference)
        for definition in crds.definitions():
            cluster.api.create(crds.COLLECTION, definition)
        cluster.api.create(objects.collection("daemonsets", namespace=NAMESPACE), self._daemonset(TAG, {}))
        cluster.wait_nodes_ready(START_TIMEOUT_S)
        cluster.wait_rolled_out("daemonsets", NAME, namespace=NAMESPACE, timeout_s=START_TIMEOUT_S)
        for worker in cluster.workers.values():
            self._label(worker, INSTANCE_TYPE, {})
        for path, thing in objects.cluster_dns(family=self._family, public=NAMES if has_internet else {}):
            cluster.api.create(path, thing)
        cluster.wait_rolled_out("deployments", "coredns", namespace=NAMESPACE, timeout_s=START_TIMEOUT_S)
        roles = {"metadata": {"name": "aws-auth", "namespace": NAMESPACE}, "data": {"mapRoles": ""}}
        cluster.api.create(objects.collection("configmaps", namespace=NAMESPACE), roles)

    def run(self, suite: Suite, *, focus: str = "") -> list[CaseResult]:
        """Run a suite, at most for its `timeout_s`. `focus`: pattern; only cases whose name matches are run and in the results."""
        names = [name for name in dry_run(self._tests, suite, output=self._output) if re.search(focus, name)]
        self._install(suite)
        with self._aws(suite) as endpoints:
            document = run_program(
                self._cluster,
                self._tests,
                suite,
                self._options(suite, focus),
                environment={**endpoints, "CLUSTER_NAME": CLUSTER_NAME},
                output=self._output,
            )
        return results.read_report(suite, document, names=names)

    def _install(self, suite: Suite) -> None:
        """Give the DaemonSet the settings of a suite, and undo what an earlier suite left in it."""
        path = f"{objects.collection('daemonsets', namespace=NAMESPACE)}/{NAME}"
        wanted = self._daemonset(TAG, suite.settings)["spec"]["template"]["spec"]
        self._cluster.api.patch(path, {"spec": {"template": {"spec": wanted}}})
        self._cluster.wait_rolled_out("daemonsets", NAME, namespace=NAMESPACE, timeout_s=START_TIMEOUT_S)

    def _stand_ins(self) -> Iterator[tuple[Path, str]]:
        """Yield the archives of the images of the tests' pods, which name themselves."""
        folder = Path(self._stack.enter_context(TemporaryDirectory(dir=self._output)))
        authority = self._cluster.control.authority
        for number, archive in enumerate(images.archives(self._rootfs, self._tests / "agent", authority=authority)):
            path = folder / f"{number}.tar"
            path.write_bytes(archive)
            yield path, ""

    @contextmanager
    def _aws(self, suite: Suite) -> Iterator[dict[str, str]]:
        """Serve the AWS APIs of a suite besides EC2. Yields: the variables by which an AWS client calls them."""
        vpc, netns = self._cluster.lab.vpc, self._cluster.control.node.netns
        with ExitStack() as stack:
            endpoints = {eks.ENDPOINT_VARIABLE: stack.enter_context(self._eks()).url}
            listener = Listener(netns.listener(EC2_ADDRESS, CLOUDFORMATION_PORT))
            groups = stack.enter_context(QueryApi(listener, self._groups.actions, namespace=node_groups.NAMESPACE))
            endpoints[node_groups.ENDPOINT_VARIABLE] = groups.url
            if Need.IAM in suite.needs:
                roles = stack.enter_context(iam.Iam(vpc, [vpc.instance(name).instance_id for name in self._cluster.workers]))
                listener = Listener(netns.listener(EC2_ADDRESS, IAM_PORT))
                api = stack.enter_context(QueryApi(listener, roles.actions, namespace=iam.NAMESPACE))
                endpoints[iam.ENDPOINT_VARIABLE] = api.url
            yield endpoints

    def _launch(self, name: str, labels: Mapping[str, str]) -> None:
        """Make a spare node a worker with these labels. Returns when Kubernetes has it."""
        instance_type = self._spares[name]
        limits = self._cluster.lab.vpc.limits[instance_type]
        worker = self._cluster.launch(name, max_pods=most_pods(limits), images=self._images)
        self._cluster.api.wait(lambda: self._missing(worker), what="a node", timeout_s=START_TIMEOUT_S)
        self._label(worker, instance_type, labels)

    def _missing(self, worker: Worker) -> str:
        names = {node["metadata"]["name"] for node in self._cluster.api.items("/api/v1/nodes")}
        return "" if worker.name in names else f"{worker.name} did not register"

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
        vpc = self._cluster.lab.vpc
        subnet = vpc.subnets()[0]
        words = {"subnet": subnet.subnet_id, "zone": subnet.az}
        if suite.node_group:
            words["private"] = vpc.instance(suite.name).subnet_id
        if Need.EARLIER_IMAGE in suite.needs:
            words |= {tag: str(self._write_manifest(tag, suite)) for tag in (TAG_BEFORE, TAG)}
        return [*options, *(option.format(**words) for option in suite.options)]

    def _write_manifest(self, tag: str, suite: Suite) -> Path:
        """Write a manifest for kubectl, of the DaemonSet with an image of this tag. Returns: its path."""
        path = self._output / f"{tag}.json"
        path.write_text(json.dumps(self._daemonset(tag, suite.settings)), encoding="utf-8")
        return path

    def _daemonset(self, tag: str, settings: Mapping[str, str]) -> Object:
        documents = yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8"))
        (manifest,) = (document for document in documents if document["kind"] == "DaemonSet")
        return as_aws_node(
            manifest,
            image=f"{IMAGE}:{tag}",
            environment={**self._cluster.towards_the_lab(), "CLUSTER_NAME": CLUSTER_NAME, **self._settings, **settings},
            family=self._family,
        )

    def _label(self, worker: Worker, instance_type: str, more: Mapping[str, str]) -> None:
        zone = self._cluster.lab.vpc.instance(worker.node.name).az
        of_type = dict.fromkeys(("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type"), instance_type)
        labels = {**of_type, "topology.kubernetes.io/zone": zone, **more}
        self._cluster.api.patch(f"/api/v1/nodes/{worker.name}", {"metadata": {"labels": labels}})


def _earlier_image() -> Path:
    """Return the archive of the image of an earlier commit. Raises: LabError if there is none."""
    archive = next(BEFORE.glob("*.tar"), None)
    if archive is None:
        raise LabError(f"no image of an earlier commit in {BEFORE.relative_to(REPOSITORY)}: tools/image_before.sh builds it")
    return archive


def most_pods(limits: InstanceLimits) -> int:
    """Return the most pods of a node with single addresses: its slots, and one pod of the host's network."""
    return sum(limits.enis_per_card) * (limits.addresses_per_eni - 1) + 1


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
    root = output / THEIR_ROOT
    root.unlink(missing_ok=True)
    root.symlink_to(tests)
    argv = [str(root / "tests" / f"{suite.name}.test"), "--ginkgo.no-color", "--ginkgo.v", f"--ginkgo.json-report={report}"]
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
