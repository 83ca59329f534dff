"""Everything that `ipamctl` and the metrics read, as one value.

Read-only: from a service that changes things it takes a callable or a narrow Protocol, so that a report cannot call a method that
changes something; of the ports (wiring, host network, EC2, history) a report calls only what reads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Set
from datetime import datetime
from typing import Protocol

from ipamd.core.deadline import KeyLocks
from ipamd.core.demand import Demand
from ipamd.core.health import Health
from ipamd.core.refused_adds import RefusedAdds
from ipamd.model.address import AddressState
from ipamd.model.attachment import Attachment
from ipamd.model.aws_node import GivenTwice
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.cloud_evidence import CloudKey
from ipamd.model.eni import InstanceLimits
from ipamd.model.evidence import Evidence, Judgement
from ipamd.model.family import IpAddress
from ipamd.model.freeze import Freezing
from ipamd.model.ids import EniId, PodName
from ipamd.model.kernel import HostVeth
from ipamd.model.plan import AutoTarget
from ipamd.model.pool import PoolSettings, PoolSnapshot
from ipamd.model.record import dataclass
from ipamd.model.sandbox import RuntimeInfo, RuntimeView
from ipamd.model.subnets import SubnetView
from ipamd.ports import Clock, Datastore, Ec2, History, HostNetwork, Runtime, Spool, Wiring
from ipamd.settings import CurrentSettings


@dataclass(frozen=True, slots=True)
class CloudView:
    """Whether EC2 answered at the last try, calls since start, and one sentence about its answer."""

    reachable: bool
    call_count: int
    detail: str


class PoolView(Protocol):
    """The pool, to be read from any thread."""

    @property
    def settings(self) -> PoolSettings:
        """The targets in force."""
        ...

    @property
    def limits(self) -> InstanceLimits | None:
        """Limits of this instance type; None until they are known."""
        ...

    @property
    def auto(self) -> AutoTarget | None:
        """The target of WARM_TARGET=auto and why; None without it."""
        ...

    def outlook(self) -> PoolSnapshot | None:
        """The planner's input now; None before the pool's first cycle."""
        ...


LOST = "EC2 does not show the address any more"
NOT_PLACED = "not recorded, and EC2 shows the address on no ENI of this node"
NOT_LED = "not recorded, and its VLAN link is gone"
ON_FROZEN = "the ENI is frozen"
UNREACHED = "packets do not reach or leave it"


@dataclass(frozen=True, slots=True)
class CutOff:
    """A living sandbox without network: its pod or key, and one of the causes above. `eni_id`: None if no row says which."""

    address: IpAddress | None
    eni_id: EniId | None
    who: str
    cause: str


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the answers come from. A callable returns what is known now, or None if nothing is known.

    `cri` is None with CRI off, as are `judgement` (the one judge about an attachment, with what every source says now) and
    `quarantined` (for which sandboxes an address is quarantined); `runtime_view` then returns None. `frozen` tells which ENIs give
    nothing although they are attached, and why, `freezings` what freezes the pool. `recent`: what our own calls to EC2 changed in the
    last minutes. `dying_count` counts host veths marked and not yet deleted. `given_twice`: what amazon-vpc-cni-k8s gave besides, by
    its file. `owed`: names of pods that are gone and that the network policy agent may know, since when. `cut_off`: sandboxes, by
    `container_id/ifname`, whose wiring could not be repaired, that a filter cuts off, or that are cut off because EC2 contradicts
    their branch ENI.
    `unplaced`: host veths of sandboxes without a row that nothing leads to the network. `trunk`: the node's trunk ENI, None while it
    has none. `waiting_branches`: ADDs that wait for a branch ENI to be
    named. `limits_of` looks a type up in the built-in
    table; with custom networking the primary ENI may carry no pods.
    """

    clock: Clock
    health: Health
    datastore: Datastore
    history: History
    spool: Spool
    wiring: Wiring
    hostnet: HostNetwork
    ec2: Ec2
    cri: Runtime | None
    locks: KeyLocks
    demand: Demand
    refused: RefusedAdds
    pool: PoolView
    settings: CurrentSettings
    identity: Callable[[], InstanceIdentity | None]
    dying_count: Callable[[], int]
    runtime_view: Callable[[], RuntimeView | None]
    runtime: Callable[[], RuntimeInfo | None]
    judgement: Callable[[Attachment], tuple[Evidence, Judgement]] | None
    quarantined: Callable[[IpAddress], list[str]] | None
    cloud: Callable[[], CloudView]
    recent: Callable[[], Collection[CloudKey]]
    frozen: Callable[[], Mapping[EniId, str]]
    freezings: Callable[[], tuple[Freezing, ...]]
    subnets: Callable[[], tuple[SubnetView, ...]]
    given_twice: Callable[[], tuple[GivenTwice, ...]]
    owed: Callable[[], Mapping[PodName, datetime]]
    cut_off: Callable[[], Set[str]]
    unplaced: Callable[[], Collection[HostVeth]]
    trunk: Callable[[], EniId | None]
    waiting_branches: Callable[[], int]
    limits_of: Callable[[str], InstanceLimits | None]
    primary_carries_pods: bool
    version: str

    def branches(self) -> list[Attachment]:
        """The sandboxes with a branch ENI. From memory; costs the number of attachments."""
        return [one for one in self.datastore.attachments() if one.branch is not None]

    def without_network(self) -> list[CutOff]:
        """The living sandboxes that have no network, as far as that is known already. From memory; costs the number of addresses.

        Status, the page, the metric and the audit all tell these, so that none of them is silent about what another says.
        """
        frozen, cut, rows = self.frozen(), self.cut_off(), self.datastore.addresses()
        lost = {row.address for row in rows if row.is_lost}
        held = [(one.address, one.eni_id, one.sandbox_name or str(one.key), str(one.key)) for one in self.datastore.attachments()]
        # A sandbox has it that no record names.
        held += [(row.address, row.eni_id, "not recorded", "") for row in rows if row.state is AddressState.QUARANTINED]
        found = [
            CutOff(address, eni_id, who, LOST if address in lost else ON_FROZEN if eni_id in frozen else UNREACHED)
            for address, eni_id, who, key in held
            if address in lost or eni_id in frozen or key in cut
        ]
        return found + [
            CutOff(veth.address, None, str(veth.key), NOT_LED if veth.is_branch else NOT_PLACED) for veth in self.unplaced()
        ]
