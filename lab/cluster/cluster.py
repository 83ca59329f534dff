"""The whole cluster as one object: a lab with two workers and a control plane, on which vpc-ipamd can be installed by its chart."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from lab.cluster import objects, programs
from lab.cluster.api import Api, Object
from lab.cluster.control_plane import FOLDER, ControlPlane
from lab.cluster.errors import ClusterError
from lab.cluster.worker import Worker
from lab.ec2.render import dns_name
from lab.lab import Lab
from lab.node import pause
from lab.node.node import REPOSITORY, Node
from lab.vpc.family import IPV4, Family
from lab.vpc.state import Vpc

WORKERS, CONTROL = ("node-a", "node-b"), "control"
INSTANCE_TYPE, MAX_PODS = "m5.xlarge", 57
"""Most pods of a worker: 4 ENIs x (15 addresses - 1), and one pod of the host's network. nodeadm adds two such pods, but here
kube-proxy is not a pod."""

IMAGE = "docker.io/library/vpc-ipamd"
ARCHIVE = REPOSITORY / "build" / "image" / f"vpc-ipamd-{'arm64' if platform.machine() == 'aarch64' else 'amd64'}.tar"
RELEASE, NAMESPACE = "vpc-ipamd", "kube-system"
VALUES = "/run/values.json"
READY_TIMEOUT_S = 180.0
HELM_TIMEOUT_S = 120.0
KUBECTL_TIMEOUT_S = 180.0


@dataclass(frozen=True)
class Release:
    """A release of vpc-ipamd to install.

    chart: the chart's folder.
    tag: the tag of its image, which every node must have.
    values: values of the chart, besides those that point it to the lab.
    """

    chart: Path
    tag: str
    values: Mapping[str, Any] = field(default_factory=dict)


class Cluster:
    """One cluster. Entering the context builds it, and leaving removes it. Concurrency: one thread; any thread may use `api`."""

    def __init__(
        self,
        *,
        proxy_mode: str = "nftables",
        instance_type: str = INSTANCE_TYPE,
        max_pods: int = MAX_PODS,
        vpc: Vpc | None = None,
        names_by_dns: bool = False,
        has_helm: bool = True,
        has_two_zones: bool = False,
        family: Family = IPV4,
        spares: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Describe a cluster, which is built when the context is entered.

        Args:
            proxy_mode: the mode of kube-proxy, nftables or iptables.
            instance_type, max_pods: instance type and most pods of each worker.
            vpc: a VPC that the caller made; the cluster closes it.
            names_by_dns: whether the nodes' names in Kubernetes are their private DNS names, as on EKS; otherwise their lab names.
            has_helm: whether the caller will use `install` or `helm`, so that helm must be there.
            has_two_zones: whether the second worker is in another zone than the first, and so in another subnet.
            family: address family of the nodes, pods and services in Kubernetes. For IPv6 `vpc` must have IPv6.
            spares: lab nodes in a private subnet that are no workers until `launch`: name -> instance type.
        """
        self.lab: Lab
        self.control: ControlPlane
        self.workers: dict[str, Worker] = {}
        self._proxy_mode = proxy_mode
        self._instance_type, self._max_pods = instance_type, max_pods
        self._vpc, self._names_by_dns = vpc, names_by_dns
        self._has_helm = has_helm
        self._family = family
        self._spares = dict(spares)
        self._second_zone = WORKERS[1:] if has_two_zones else ()
        self._stack = ExitStack()
        self._api: Api | None = None

    def __enter__(self) -> Cluster:
        if problem := programs.missing(has_helm=self._has_helm):
            raise ClusterError(problem)
        if not ARCHIVE.exists():
            raise ClusterError(f"no {ARCHIVE.relative_to(REPOSITORY)}: `make image` builds it")
        try:
            self._build()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    @property
    def api(self) -> Api:
        """The client of the API server, with the administrator's rights."""
        if self._api is None:
            self._api = self.control.api
        return self._api

    @property
    def nodes(self) -> Mapping[str, Node]:
        """The workers' lab nodes by name."""
        return {name: worker.node for name, worker in self.workers.items()}

    def load_image(self, tag: str, archive: Path) -> None:
        """Load an image of vpc-ipamd into the containerd of every worker, under this tag."""
        for worker in self.workers.values():
            worker.load_image(archive, reference=f"{IMAGE}:{tag}")

    def install(self, release: Release) -> None:
        """Run `helm upgrade --install`, which does not wait for pods. Raises: NodeError with helm's message."""
        environment = [{"name": name, "value": value} for name, value in self.towards_the_lab().items()]
        own = {"image": {"repository": RELEASE, "tag": release.tag}, "clusterName": "lab"}
        more = [*environment, *release.values.get("extraEnv", ())]
        self.control.node.write_file(VALUES, json.dumps(own | dict(release.values) | {"extraEnv": more}).encode())
        self.helm("upgrade", "--install", RELEASE, str(release.chart), "--values", VALUES)

    def helm(self, *words: str) -> str:
        """Run helm as the administrator, in the namespace of vpc-ipamd. Returns: its output. Raises: NodeError with helm's message."""
        access = ["--namespace", NAMESPACE, "--kubeconfig", f"{FOLDER}/admin.conf"]
        return self._run([str(programs.HELM), *words, *access], timeout_s=HELM_TIMEOUT_S)

    def kubectl(self, *words: str, timeout_s: float = KUBECTL_TIMEOUT_S, check: bool = True) -> str:
        """Run kubectl as the administrator. Returns: its output. Raises: NodeError with its message, if it fails and `check` is
        true."""
        argv = [programs.program("kubectl"), "--kubeconfig", f"{FOLDER}/admin.conf", *words]
        return self._run(argv, timeout_s=timeout_s, check=check)

    def wait_nodes_ready(self, timeout_s: float = READY_TIMEOUT_S) -> float:
        """Wait until every worker's condition Ready is true. Returns: the seconds that this took."""
        return self.api.wait(self._unready_nodes, what="all nodes ready", timeout_s=timeout_s)

    def wait_rolled_out(
        self, kind: str, name: str, *, namespace: str = objects.NAMESPACE, timeout_s: float = READY_TIMEOUT_S
    ) -> float:
        """Wait until all pods of a Deployment or DaemonSet have its present spec and are ready. `kind`: in plural.

        Returns: the seconds that this took.
        """
        path = f"{objects.collection(kind, namespace=namespace)}/{name}"

        def problem() -> str:
            workload = self.api.get(path)
            status, generation = workload.get("status", {}), workload["metadata"]["generation"]
            wanted = workload["spec"].get("replicas", status.get("desiredNumberScheduled", -1))
            updated = status.get("updatedReplicas", status.get("updatedNumberScheduled", 0))
            counts = updated, status.get("readyReplicas", status.get("numberReady", 0)), status.get("replicas", wanted)
            is_done = status.get("observedGeneration") == generation and counts == (wanted, wanted, wanted)
            return "" if is_done else f"{counts[1]} of {wanted} ready, {updated} of this revision; {self._why(namespace)}"

        return self.api.wait(problem, what=f"rolled out: {name}", timeout_s=timeout_s)

    def pods(self, name: str = "", *, namespace: str = objects.NAMESPACE) -> list[Object]:
        """List the pods of a Deployment of this module's tests (label `app`), or of the whole namespace, sorted by name."""
        query = f"?labelSelector=app%3D{name}" if name else ""
        return sorted(
            self.api.items(objects.collection("pods", namespace=namespace) + query), key=lambda pod: str(pod["metadata"]["name"])
        )

    def daemon_pods(self) -> list[Object]:
        """List the pods of vpc-ipamd."""
        label = "app.kubernetes.io%2Fname%3Dvpc-ipamd"
        return self.api.items(f"{objects.collection('pods', namespace=NAMESPACE)}?labelSelector={label}")

    def reboot(self, name: str, *, forget: Sequence[str] = ()) -> None:
        """Cut a worker's power and boot it. Returns when its programs run. `forget`: as in `Worker.reboot`."""
        enis = self.lab.vpc.enis_of(self.lab.vpc.instance(name).instance_id)
        self.workers[name].reboot(self.control, enis, forget=forget)

    def launch(self, name: str, *, max_pods: int, images: Iterable[tuple[Path, str]]) -> Worker:
        """Make a spare node a worker. It returns before the node has registered.

        Args:
            max_pods: most pods of the node.
            images: archives to load, each with a reference, as in `Worker.load_image`.
        """
        worker = self._prepare_worker(name, max_pods=max_pods)
        for archive, reference in images:
            worker.load_image(archive, reference=reference)
        worker.start_kubelet()
        worker.start_proxy(self._proxy_mode)
        self.workers[name] = worker
        return worker

    def terminate(self, name: str) -> None:
        """Terminate the instance of a worker that was launched, and remove its node from Kubernetes. The lab node itself stays, with
        its containers, until the lab ends."""
        worker = self.workers.pop(name)
        programs.end(worker.kubelet)
        programs.end(worker.proxy)
        self.api.delete(f"/api/v1/nodes/{worker.name}")
        self.lab.vpc.terminate_instance(self.lab.vpc.instance(name).instance_id)

    def towards_the_lab(self) -> dict[str, str]:
        """Return the environment variables by which an AWS client calls the lab."""
        environment = next(iter(self.nodes.values())).daemon_environment(self.lab.vpc.region)
        return {name: value for name, value in environment.items() if name.startswith("AWS_")}

    def ended(self) -> list[str]:
        """List the programs of the workers that ended by themselves."""
        return [name for worker in self.workers.values() for name in worker.ended()]

    def keep_logs(self, folder: Path) -> None:
        """Copy the logs of all programs and of vpc-ipamd's containers to `folder`, for the analysis of a failure."""
        for node in self.lab.nodes.values():
            target = folder / node.name
            target.mkdir(parents=True, exist_ok=True)
            for log in (*Path(node.root + "/var/log").glob("*.log"), *Path(node.root + "/var/log/pods").glob("*/*/*.log")):
                if log.name.partition(".")[0] in (*programs.NAMES, "containerd") or any(
                    part in str(log) for part in ("vpc-ipamd", "aws-node")
                ):
                    name = "-".join(log.parts[-3:]) if "pods" in log.parts else log.name
                    (target / name).write_bytes(log.read_bytes())

    def _build(self) -> None:
        self.lab = self._stack.enter_context(
            Lab(
                name=f"cluster-{int(time.time())}",
                nodes=(*WORKERS, CONTROL),
                containerd=False,
                instance_type=self._instance_type,
                vpc=self._vpc,
                second_zone=self._second_zone,
                private=self._spares,
            )
        )
        names = {name: self._name_in_kubernetes(name) for name in (*WORKERS, *self._spares)}
        self.control = ControlPlane(self.lab.node(CONTROL), self._address(CONTROL), workers=tuple(names.values()))
        self.control.start()
        for name in WORKERS:
            self.workers[name] = self._prepare_worker(name, max_pods=self._max_pods)
        for worker in self.workers.values():
            worker.start_kubelet()
            worker.start_proxy(self._proxy_mode)
        self.api.create("/api/v1/namespaces", {"metadata": {"name": objects.NAMESPACE}})

    def _prepare_worker(self, name: str, *, max_pods: int) -> Worker:
        instance = self.lab.vpc.instance(name)
        worker = Worker(
            self.lab.node(name),
            self._address(name),
            name=self._name_in_kubernetes(name),
            max_pods=max_pods,
            provider_id=f"aws:///{instance.az}/{instance.instance_id}",
        )
        worker.prepare(self.control)
        dns = pause.archive(objects.DNS_IMAGE, "coredns", Path(programs.program("coredns")).read_bytes())
        worker.node.write_file("/run/coredns.tar", dns)
        worker.load_image(Path("/run/coredns.tar"))
        worker.node.run(["rm", "/run/coredns.tar"])
        return worker

    def _address(self, name: str) -> str:
        return str(self.lab.own_address(name, self._family))

    def _name_in_kubernetes(self, worker: str) -> str:
        return dns_name(self.lab.vpc, self.lab.primary_address(worker)) if self._names_by_dns else worker

    def _run(self, argv: Sequence[str], *, timeout_s: float, check: bool = True) -> str:
        return self.control.node.run(argv, timeout_s=timeout_s, check=check, env={"HOME": "/run"}).stdout

    def _unready_nodes(self) -> str:
        nodes = {
            node["metadata"]["name"]: conditions(node).get("Ready", ("", "no condition"))
            for node in self.api.items("/api/v1/nodes")
        }
        lacking = [worker.name for worker in self.workers.values() if worker.name not in nodes]
        unready = [f"{name}: {message}" for name, (status, message) in nodes.items() if status != "True"]
        if gone := self.ended():
            raise ClusterError(f"{', '.join(gone)} has ended")
        return "; ".join([*unready, *(f"{name} did not register" for name in lacking)])

    def _why(self, namespace: str) -> str:
        """Return the newest warning event of a namespace, as a hint to the cause."""
        warnings = [
            event for event in self.api.items(objects.collection("events", namespace=namespace)) if event.get("type") == "Warning"
        ]
        newest = max(warnings, key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime")), default=None)
        return f"last warning: {newest['reason']} {newest['message'][:300]}" if newest else "no warning"


def conditions(thing: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return the conditions of a node or pod: type -> (status, message)."""
    entries = thing.get("status", {}).get("conditions") or []
    return {entry["type"]: (entry["status"], entry.get("message", entry.get("reason", ""))) for entry in entries}


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Whether a pod is ready and is not being deleted."""
    return conditions(pod).get("Ready", ("", ""))[0] == "True" and "deletionTimestamp" not in pod["metadata"]
