"""Everything that `ipamctl` and the metrics read, as one read-only value.

A service that can change something is present only as a callable or a narrow Protocol, so that a report cannot change it. On the ports
(wiring, host network, EC2, history) a report calls only methods that read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Set
from datetime import datetime
from typing import Protocol

from ipamd.core.demand import Demand
from ipamd.core.health import Health
from ipamd.core.key_locks import KeyLocks
from ipamd.core.refused_adds import RefusedAdds
from ipamd.model.address import Address, AddressState
from ipamd.model.attachment import Attachment
from ipamd.model.auto_target import AutoTarget
from ipamd.model.aws_node import GivenTwice
from ipamd.model.cause import Ec2Refusal
from ipamd.model.cloud import ConnectionTracking, InstanceIdentity
from ipamd.model.cloud_evidence import CloudKey
from ipamd.model.companions import Companion
from ipamd.model.eni import Eni, InstanceLimits
from ipamd.model.evidence import Evidence, Judgement
from ipamd.model.family import IpAddress
from ipamd.model.freeze import Freezing
from ipamd.model.ids import EniId, PodName
from ipamd.model.kernel import HostVeth
from ipamd.model.network_file import NetworkFile
from ipamd.model.pod_pools import PodPools
from ipamd.model.pod_snat_choice import PodSnatChoice
from ipamd.model.pool_settings import PoolSettings
from ipamd.model.pool_snapshot import PoolSnapshot
from ipamd.model.record import dataclass
from ipamd.model.sandbox import RuntimeInfo, RuntimeView
from ipamd.model.subnets import CustomNetwork, SubnetCheck, SubnetView
from ipamd.ports.cloud import Ec2
from ipamd.ports.datastore import Datastore, Spool
from ipamd.ports.history import History
from ipamd.ports.kernel import HostNetwork, Wiring
from ipamd.ports.packet_path import PacketPaths
from ipamd.ports.process import Clock
from ipamd.ports.runtime import Runtime
from ipamd.settings import CurrentSettings


@dataclass(frozen=True, slots=True)
class CloudView:
    """The state of the connection to EC2.

    `reachable`: whether EC2 answered the last call.
    `call_count`: the number of calls since the start of the daemon.
    `detail`: a sentence about the last answer.
    """

    reachable: bool
    call_count: int
    detail: str


class PoolView(Protocol):
    """The pools of the node, to be read from any thread. `pool` is the name of a pool, "" for the node's own pool."""

    @property
    def pools(self) -> PodPools:
        """The pools of pods that the network file names."""
        ...

    @property
    def settings(self) -> PoolSettings:
        """The targets of the node's own pool that are in force."""
        ...

    @property
    def limits(self) -> InstanceLimits | None:
        """Limits of this instance type; None until they are known."""
        ...

    @property
    def auto(self) -> AutoTarget | None:
        """The target that VPC_IPAMD_WARM_TARGET_MODE=auto computed, with the reason; None with another mode."""
        ...

    def preview(self, pool: str = ...) -> PoolSnapshot | None:
        """The present input of the planner; None before the pool's first cycle."""
        ...

    def settings_of(self, pool: str) -> PoolSettings:
        """The present targets of a pool."""
        ...

    def targets_of(self, pool: str, own: PoolSettings) -> PoolSettings:
        """The targets that a pool would have if the node's own pool had the targets `own`."""
        ...


class NetworkJudge(Protocol):
    """Judges a network file in the same way as a start with it. Changes nothing. Safe from any thread."""

    def exclusion_under(self, eni: Eni, network: NetworkFile) -> str:
        """Return why new sandboxes would get no address of the ENI; "" if they would."""
        ...

    def check_network(self, custom: CustomNetwork, identity: InstanceIdentity) -> SubnetCheck:
        """Check whether ENIs could be created in the subnet that the file names for this node. Makes one EC2 call."""
        ...


LOST = "EC2 does not show the address any more"
NOT_PLACED = "not recorded, and EC2 shows the address on no ENI of this node"
NO_VLAN_LINK = "not recorded, and its VLAN link is gone"
ON_FROZEN = "the ENI is frozen"
UNREACHED = "packets do not reach or leave it"


@dataclass(frozen=True, slots=True)
class CutOff:
    """An interface of a living sandbox that has no network.

    `sandbox`: identifies the sandbox: its container ID, or the address if only that is known.
    `eni_id`: the ENI of its address; None if the address has no row.
    `name`: the name of its pod, or its key if the pod's name or the record is missing; "not recorded" if only its quarantined address
        is known.
    `cause`: LOST, NOT_PLACED, NO_VLAN_LINK, ON_FROZEN or UNREACHED.
    """

    sandbox: str
    address: IpAddress | None
    eni_id: EniId | None
    name: str
    cause: str


@dataclass(frozen=True, slots=True)
class Sources:
    """The sources of all reports. A callable returns the present value of its fact, or None if that is not known.

    With CRI off, `cri`, `judgement`, `quarantined` and `missing_count` are None, and `runtime_view` returns None.
    """

    clock: Clock
    health: Health
    datastore: Datastore
    history: History
    spool: Spool
    wiring: Wiring
    hostnet: HostNetwork
    paths: PacketPaths
    ec2: Ec2
    cri: Runtime | None
    locks: KeyLocks
    demand: Demand
    refused: RefusedAdds
    pool: PoolView
    settings: CurrentSettings
    identity: Callable[[], InstanceIdentity | None]
    dying_count: Callable[[], int]
    """The number of links that are marked for deletion and not yet deleted."""
    runtime_view: Callable[[], RuntimeView | None]
    runtime: Callable[[], RuntimeInfo | None]
    judgement: Callable[[Attachment], tuple[Evidence, Judgement]] | None
    """Returns what every source shows about an attachment at present, and the judgement that follows."""
    quarantined: Callable[[IpAddress], list[str]] | None
    """Returns a sentence for each sandbox because of which an address is quarantined, with the verdict about that sandbox."""
    missing_count: Callable[[Collection[Attachment], Collection[str]], int] | None
    """Returns the number of wired sandboxes if the runtime's list has none of them, so that the list is not plausible; else 0."""
    cloud: Callable[[], CloudView]
    recent: Callable[[], Collection[CloudKey]]
    """ENIs and addresses that our own calls to EC2 changed in the last minutes."""
    frozen: Callable[[], Mapping[EniId, str]]
    """The frozen ENIs, whose addresses are not assigned, with the reason."""
    left_detached: Callable[[], Collection[EniId]]
    """The ENIs that other software detached from this node and that were forgotten since the start. EC2 may still have them."""
    freezings: Callable[[], tuple[Freezing, ...]]
    """The causes that freeze the pool."""
    subnets: Callable[[], tuple[SubnetView, ...]]
    given_twice: Callable[[], tuple[GivenTwice, ...]]
    """Addresses of our sandboxes that amazon-vpc-cni-k8s, according to its file, has assigned to other sandboxes."""
    pending_policy_cleanups: Callable[[], Mapping[PodName, datetime]]
    """Pods that have no sandbox any more, but that the network policy agent may remember, each with the time when it was recorded."""
    cut_off: Callable[[], Set[str]]
    """Sandboxes, as `container_id/ifname`, whose wiring could not be repaired, or whose branch ENI EC2 contradicts."""
    unplaced: Callable[[], Collection[HostVeth]]
    """Host veths of sandboxes that have no row and no connection to the network."""
    trunk: Callable[[], EniId | None]
    """The node's trunk ENI; None while it has none."""
    waiting_for_uplink: Callable[[], int]
    """The number of ADDs that wait until the control plane has named their branch ENI."""
    limits_of: Callable[[str], InstanceLimits | None]
    """Limits of an instance type, from the built-in table."""
    refusal_ages: Callable[[], Mapping[Ec2Refusal, float]]
    """Seconds since EC2 last refused, by refusal; of requests whose refusal is known."""
    companions: Callable[[], tuple[Companion, ...]]
    """Other software whose plugins run beside ours."""
    groups_of: Callable[[EniId], tuple[str, ...]]
    """Security groups of an ENI, according to EC2's last answer; empty before the first."""
    tracking_of: Callable[[EniId], ConnectionTracking]
    """Timeouts of connection tracking of an ENI, according to EC2's last answer."""
    primary_carries_pods: bool
    """Whether pods may be on the primary ENI; False with custom networking, except if the network file allows it."""
    snat_choice: PodSnatChoice
    """The settings in force that choose the SNAT of new pods."""
    network_file: NetworkFile
    """The network file that is in force. It is empty if no file is used."""
    network_judge: NetworkJudge
    version: str

    def uplinked(self) -> list[Attachment]:
        """Return the sandboxes with an uplink. Read from memory. The cost grows with the number of attachments."""
        return [attachment for attachment in self.datastore.attachments() if not attachment.is_of_pool]

    def without_network(self) -> list[CutOff]:
        """Return the interfaces of living sandboxes that are known to have no network. Read from memory. The cost grows with the
        number of addresses.

        Status, the page, the metric and the audit all use this list, so that they never contradict each other. They count its
        sandboxes (`sandbox_count`).
        """
        frozen, cut_off, rows = self.frozen(), self.cut_off(), self.datastore.addresses()
        lost = {row.address for row in rows if row.is_lost}
        interfaces = []
        for attachment in self.datastore.attachments():
            cause = _cause(attachment.address, attachment.eni_id, lost, frozen)
            if not cause and str(attachment.key) in cut_off:
                cause = UNREACHED
            if cause:
                name = attachment.sandbox_name or str(attachment.key)
                interfaces.append(CutOff(attachment.key.container_id, attachment.address, attachment.eni_id, name, cause))
        interfaces += _unrecorded_without_network(rows, lost, frozen)
        return [*interfaces, *map(_unplaced_without_network, self.unplaced())]


def sandbox_count(interfaces: Iterable[CutOff]) -> int:
    """Count the sandboxes of some interfaces. Several interfaces of one sandbox count once."""
    return len({interface.sandbox for interface in interfaces})


def _unrecorded_without_network(rows: Iterable[Address], lost: Set[IpAddress], frozen: Mapping[EniId, str]) -> list[CutOff]:
    """Return the interfaces without a record that have no network. The address of each is quarantined."""
    interfaces = []
    for row in rows:
        cause = _cause(row.address, row.eni_id, lost, frozen)
        if cause and row.state is AddressState.QUARANTINED:
            interfaces.append(CutOff(str(row.address), row.address, row.eni_id, "not recorded", cause))
    return interfaces


def _unplaced_without_network(veth: HostVeth) -> CutOff:
    """Return the interface of an unplaced veth."""
    cause = NO_VLAN_LINK
    if veth.is_of_pool:
        cause = NOT_PLACED
    sandbox = str(veth.address)
    if veth.key is not None:
        sandbox = veth.key.container_id
    return CutOff(sandbox, veth.address, None, str(veth.key), cause)


def _cause(address: IpAddress, eni_id: EniId, lost: Set[IpAddress], frozen: Mapping[EniId, str]) -> str:
    """Return why a sandbox with this address on this ENI has no network; "" if neither the address nor the ENI is the reason."""
    if address in lost:
        return LOST
    if eni_id in frozen:
        return ON_FROZEN
    return ""
