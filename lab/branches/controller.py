"""A stand-in of amazon-vpc-resource-controller-k8s: trunks for nodes that ask, a branch ENI for each bound pod, its cooldown, its end.

It shares with the real one: who gets a trunk and where, the lowest free VLAN ID, descriptions and tags, the annotation, the capacity
(used and cooling branches together), the cooldown before a branch is deleted and its ID is free, what a start rebuilds from pods and
tags. It differs: everything is done by one thread, soon, and the caller scales times. It can be slow, dead, forgetful and wrong.
Source: pkg/node/manager/manager.go, pkg/provider/branch/provider.go, pkg/provider/branch/trunk/trunk.go.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lab.branches.pods import POD_ENI, Pod, PodGoneError, PodStore
from lab.vpc.errors import Ec2Error
from lab.vpc.model import Eni
from lab.vpc.state import Vpc

log = logging.getLogger(__name__)

TRUNK_LABEL, FEATURE = "vpc.amazonaws.com/has-trunk-attached", "SecurityGroupsForPods"
TRUNK_DESCRIPTION, BRANCH_DESCRIPTION = "aws-k8s-trunk-eni", "aws-k8s-branch-eni"
VLAN_TAG, TRUNK_TAG = "vpcresources.k8s.aws/vlan-id", "vpcresources.k8s.aws/trunk-eni-id"
INSTANCE_TAG, OWNER_TAG, OWNER = "node.k8s.amazonaws.com/instance_id", "eks:eni:owner", "eks-vpc-resource-controller"
VLAN_MAX = 120
COOLDOWN_S = 60.0
"""The real one's; a lab gives a shorter one."""

BEAT_S = 0.2
JOIN_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Given:
    """One branch ENI and the pod that it was made for. `cooling_since_s` and `deleted_at_s`: monotonic, None before."""

    pod: str
    uid: str
    node: str
    eni_id: str
    mac: str
    addresses: tuple[str, ...]
    vlan: int
    association_id: str
    groups: tuple[str, ...]
    cooling_since_s: float | None = None
    deleted_at_s: float | None = None


@dataclass
class _Trunk:
    """What it remembers of a trunk, until it dies."""

    eni_id: str
    by_uid: dict[str, Given] = field(default_factory=dict)
    cooling: list[Given] = field(default_factory=list)

    @property
    def used(self) -> set[int]:
        return {one.vlan for one in (*self.by_uid.values(), *self.cooling)}


@dataclass(frozen=True)
class _Asker:
    """A node of which it knows, and what it says."""

    instance_id: str
    labels: Mapping[str, str] = field(default_factory=dict)
    features: tuple[str, ...] = ()

    @property
    def wants_trunk(self) -> bool:
        """Any value of the label counts."""
        return TRUNK_LABEL in self.labels or FEATURE in self.features


class BranchController:
    """The controller: one thread from `start` to `stop`. What it gave is in `record`, which survives it. Thread-safe."""

    def __init__(self, vpc: Vpc, pods: PodStore, *, cooldown_s: float = COOLDOWN_S, beat_s: float = BEAT_S) -> None:
        """Nothing is started yet."""
        self.cooldown_s = cooldown_s
        self.slow_s = 0.0
        """How long a pod is bound before it is served."""
        self.forgets_annotations = False
        """Whether branches are made, and pods are not told; pods told never are told when this ends."""
        self.forgets_ends = False
        """Whether the ends of pods are missed until it is started anew."""
        self.wrong: Callable[[dict[str, Any]], dict[str, Any]] | None = None
        """What it writes instead of the truth."""
        self._vpc = vpc
        self._pods = pods
        self._beat_s = beat_s
        self._lock = threading.RLock()
        self._nodes: dict[str, _Asker] = {}
        self._trunks: dict[str, _Trunk] = {}
        self._record: dict[str, Given] = {}
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self.problems: list[str] = []

    def add_node(self, name: str, *, labels: Mapping[str, str] | None = None, features: tuple[str, ...] = ()) -> None:
        """A node joins, or says something else of itself: `labels` of its Node, `features` of its CNINode."""
        instance_id = self._vpc.instance(name).instance_id
        with self._lock:
            self._nodes[name] = _Asker(instance_id, dict(labels or {}), features)
        self._pods.wake()

    def start(self) -> None:
        """Begin, and rebuild what is known from pods and tags."""
        self._ended.clear()
        with self._lock:
            self._trunks.clear()
        self._thread = threading.Thread(target=self._run, name="branch-controller", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Die: what was remembered is lost; idempotent."""
        self._ended.set()
        self._pods.wake()
        if self._thread is not None:
            self._thread.join(JOIN_S)
            self._thread = None

    @property
    def record(self) -> list[Given]:
        """Everything that it ever made, in order."""
        with self._lock:
            return list(self._record.values())

    def given(self, pod: Pod) -> Given | None:
        """What it made for a pod, deleted or not."""
        with self._lock:
            return next((one for one in self._record.values() if one.uid == pod.uid), None)

    def trunk_of(self, node: str) -> str:
        """The trunk of a node, by what it remembers; "" for none."""
        with self._lock:
            return self._trunks[node].eni_id if node in self._trunks else ""

    def capacity(self, node: str) -> int:
        """How many pods with branches a node takes at once: what it advertises as a resource; 0 without a trunk."""
        with self._lock:
            return self._limit(node) if node in self._trunks else 0

    def _limit(self, node: str) -> int:
        return self._vpc.limits[self._vpc.instance(node).instance_type].branches

    def _run(self) -> None:
        seen = -1
        while not self._ended.is_set():
            seen = self._pods.wait(seen, timeout_s=self._beat_s)
            try:
                with self._lock:
                    self._beat()
            except Exception as error:  # top of the loop: what goes wrong is seen by the tests, and the rest goes on
                log.exception("the branch controller failed")
                self.problems.append(f"{type(error).__name__}: {error}")

    def _beat(self) -> None:
        for name, asker in self._nodes.items():
            if asker.wants_trunk and name not in self._trunks and self._limit(name):
                self._init_trunk(name, asker)
        for pod in self._pods.pods():
            if pod.wants_branch and pod.node and not pod.is_over and POD_ENI not in pod.annotations:
                self._serve(pod)
        for node, trunk in self._trunks.items():
            self._take_back(node, trunk)
            self._delete_cooled(trunk)

    def _init_trunk(self, name: str, asker: _Asker) -> None:
        """Find the trunk with its branches, or make one; without a free index it is tried again with the next beat."""
        trunk = self._vpc.trunks.trunk_of(asker.instance_id)
        if trunk is None:
            try:
                tags = {INSTANCE_TAG: asker.instance_id, OWNER_TAG: OWNER}
                trunk = self._vpc.trunks.create_trunk(asker.instance_id, description=TRUNK_DESCRIPTION, tags=tags)
            except Ec2Error as error:
                log.info("no trunk for %s yet: %s", name, error)
        if trunk is None or trunk.attachment is None:
            return
        rebuilt = _Trunk(trunk.eni_id)
        self._trunks[name] = rebuilt
        told = {entry["eniId"]: pod.uid for pod in self._pods.pods(node=name) for entry in _entries(pod)}
        for eni in self._vpc.enis():
            known = self._record.get(eni.eni_id)
            if known is None or eni.tags.get(TRUNK_TAG) != trunk.eni_id:
                continue
            if eni.eni_id in told:
                rebuilt.by_uid[told[eni.eni_id]] = known
            else:
                self._cool(rebuilt, known)

    def _serve(self, pod: Pod) -> None:
        trunk = self._trunks.get(pod.node)
        if trunk is None or time.monotonic() < pod.bound_at_s + self.slow_s:
            return
        if pod.uid in trunk.by_uid:
            self._tell(pod, trunk.by_uid[pod.uid])
            return
        if len(trunk.by_uid) + len(trunk.cooling) >= self._limit(pod.node):
            return  # the real one looks again after one cooldown
        vlan = next(number for number in range(1, VLAN_MAX + 1) if number not in trunk.used)
        try:
            given = self._make(pod, trunk, vlan)
        except Ec2Error as error:
            log.info("no branch for %s yet: %s", pod.key, error)
            return
        trunk.by_uid[pod.uid] = given
        self._tell(pod, given)

    def _make(self, pod: Pod, trunk: _Trunk, vlan: int) -> Given:
        instance_id = self._nodes[pod.node].instance_id
        tags = {VLAN_TAG: str(vlan), TRUNK_TAG: trunk.eni_id, INSTANCE_TAG: instance_id, OWNER_TAG: OWNER}
        groups = pod.groups or self._vpc.eni(trunk.eni_id).security_groups
        eni = self._vpc.trunks.create_branch(trunk.eni_id, groups=groups, description=BRANCH_DESCRIPTION, tags=tags)
        try:
            bond = self._vpc.trunks.associate(trunk.eni_id, eni.eni_id, vlan)
        except Ec2Error:
            self._vpc.trunks.delete(eni.eni_id)
            raise
        given = Given(
            pod=pod.key,
            uid=pod.uid,
            node=pod.node,
            eni_id=eni.eni_id,
            mac=eni.mac,
            addresses=tuple(map(str, eni.all_addresses)),
            vlan=vlan,
            association_id=bond.association_id,
            groups=groups,
        )
        self._record[eni.eni_id] = given
        return given

    def _tell(self, pod: Pod, given: Given) -> None:
        if self.forgets_annotations:
            return
        entry = self._entry(self._vpc.eni(given.eni_id), given)
        if self.wrong is not None:
            entry = self.wrong(entry)
        try:
            self._pods.annotate(pod, POD_ENI, json.dumps([entry]))
        except PodGoneError:
            log.info("%s was gone before it was told of its branch", pod.key)  # its end is seen below, as that of any pod

    def _entry(self, eni: Eni, given: Given) -> dict[str, Any]:
        subnet = self._vpc.world.subnet(eni.subnet_id)
        return {
            "eniId": eni.eni_id,
            "ifAddress": eni.mac,
            "privateIp": str(eni.primary_address or ""),
            "ipv6Addr": next((str(address) for address in eni.ipv6_addresses), ""),
            "vlanId": given.vlan,
            "subnetCidr": str(subnet.cidr),
            "subnetV6Cidr": str(subnet.ipv6_cidr or ""),
            "associationID": given.association_id,
        }

    def _take_back(self, node: str, trunk: _Trunk) -> None:
        if self.forgets_ends:
            return
        living = {pod.uid for pod in self._pods.pods(node=node) if not pod.is_over}
        for uid in trunk.by_uid.keys() - living:
            self._cool(trunk, trunk.by_uid.pop(uid))

    def _cool(self, trunk: _Trunk, given: Given) -> None:
        cooling = replace(given, cooling_since_s=time.monotonic())
        self._record[given.eni_id] = cooling
        trunk.cooling.append(cooling)

    def _delete_cooled(self, trunk: _Trunk) -> None:
        for given in tuple(trunk.cooling):
            since = given.cooling_since_s
            if since is None or time.monotonic() < since + self.cooldown_s:
                continue
            try:
                self._vpc.trunks.delete(given.eni_id)
            except Ec2Error as error:
                if "NotFound" not in error.code:
                    raise
            trunk.cooling.remove(given)
            self._record[given.eni_id] = replace(given, deleted_at_s=time.monotonic())


def _entries(pod: Pod) -> list[dict[str, Any]]:
    try:
        found = json.loads(pod.annotations.get(POD_ENI, "[]"))
    except ValueError:
        return []
    return [entry for entry in found if isinstance(entry, dict) and "eniId" in entry] if isinstance(found, list) else []
