"""Replacements for the surroundings of a node: the parts of its kernel and metadata that the pool uses, and a datastore without a
disk.

The datastore is the daemon's, with its unit of work, its checks and its copy in memory. Only the SQLite file is left out, because with
five thousand files the disk of this machine would be measured. So refusals by SQL constraints do not occur here; the crash tests cover
them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bench.fleet.ec2 import Ec2Model, ModelEni
from ipamd.datastore.disk import Disk
from ipamd.datastore.store import SqlDatastore
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.eni import Eni, InstanceLimits
from ipamd.model.errors import IpamError, WiringError
from ipamd.model.ids import EniId, InstanceId, MacAddress, SubnetId
from ipamd.model.kernel import KernelSurvey
from ipamd.model.snapshot import Snapshot
from ipamd.ports.process import Clock

LINK_WAIT_S = 20.0
"""Longest wait for the link of an ENI that is being attached. The daemon's kernel adapter waits as long."""

NOTHING_WIRED = KernelSurvey((), {}, frozenset(), {})


class NoDisk(Disk):
    """A datastore file that accepts every change and stores none. A unit of work never needs to read its changes back."""

    def __init__(self) -> None:
        self.path = Path("none")
        self.lock = threading.Lock()
        self._broken = ""

    def begin(self) -> None:
        """Do nothing."""

    def commit(self) -> None:
        """Do nothing."""

    def rollback(self) -> None:
        """Do nothing, because no unit of work fails in the simulation."""

    def execute(self, statement: Any, params: Any = None, *, subject: str) -> Any:  # noqa: ARG002
        """Return a result without rows."""
        return SimpleNamespace(scalar_one=int, all=list)

    def write(self, statement: Any, params: Any, *, subject: str) -> int:  # noqa: ARG002
        """Return that one row was changed."""
        return 1


def empty_datastore(clock: Clock) -> SqlDatastore:
    """Make the daemon's datastore with NoDisk as its file."""
    return SqlDatastore(NoDisk(), Snapshot({}, {}, {}, {}, {}), clock=clock)


class VirtualHost:
    """The node's kernel and metadata: the parts of the ports `Wiring`, `HostNetwork` and `Metadata` that the pool uses."""

    def __init__(self, model: Ec2Model, instance: int, limits: InstanceLimits) -> None:
        self._model = model
        self._instance = instance
        primary = model.add_instance(instance, limits)
        subnet = model.subnet(primary.subnet)
        self._identity = InstanceIdentity(
            instance_id=InstanceId(f"i-{instance:017x}"),
            instance_type=limits.instance_type,
            region="us-west-2",
            availability_zone="us-west-2a",
            vpc_id="vpc-1",
            vpc_cidrs=(IPv4Network("10.0.0.0/8"),),
            primary_mac=MacAddress(primary.mac),
            primary_eni_id=EniId(primary.eni_id),
            primary_address=IPv4Address(primary.primary),
            subnet_id=SubnetId(subnet.subnet_id),
            subnet_cidr=subnet.cidr,
            security_group_ids=("sg-1",),
        )

    def identity(self) -> InstanceIdentity:
        """See `Metadata`."""
        return self._identity

    def survey(self, *, may_be_torn: bool = False) -> KernelSurvey:  # noqa: ARG002
        """See `Wiring`. The survey is empty, so that no unrecorded sandbox is found."""
        return NOTHING_WIRED

    def links(self) -> frozenset[MacAddress]:
        """See `HostNetwork`."""
        return frozenset(MacAddress(eni.mac) for eni in self._attached())

    def await_link(self, mac: MacAddress) -> None:
        """See `HostNetwork`."""
        world = self._model.world
        for eni in self._model.enis_of(self._instance).values():
            if eni.mac == mac:
                left_s = eni.attached_s - world.now_s
                if left_s > 0:
                    world.sleep(min(left_s, LINK_WAIT_S))
                return
        world.sleep(LINK_WAIT_S)
        raise WiringError(f"no link with {mac} appeared")

    def setup_eni(self, eni: Eni) -> None:
        """See `HostNetwork`."""

    def setup_enis(self, enis: Collection[Eni]) -> dict[EniId, IpamError]:
        """See `HostNetwork`: every ENI is set up."""
        del enis
        return {}

    def remove_prefix_rules(self, is_needless: Callable[[IPv4Network, int], bool]) -> None:
        """See `HostNetwork`. There are no such rules here."""

    def teardown_eni(self, eni: Eni, *, remaining: Iterable[Eni] = ()) -> None:
        """See `HostNetwork`."""

    def _attached(self) -> Collection[ModelEni]:
        now_s = self._model.world.now_s
        return [eni for eni in self._model.enis_of(self._instance).values() if now_s >= eni.attached_s]
