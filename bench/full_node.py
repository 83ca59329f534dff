"""`scale_*`: a node with 15 ENIs x 49 prefixes and 737 sandboxes compared with one with 10 sandboxes: ADD, planning, and opening the
datastore.

Only the datastore and the planner depend on the number of addresses, so they are measured in this process. In a whole call the
kernel's time would hide a factor of 1.25. An ADD here is the reservation, its transaction and the plan that follows it. Both nodes are
measured in turn, so that other load of the machine affects both alike.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address, IPv4Network, IPv6Network
from pathlib import Path

from bench.figures import Figure
from bench.samples import median, spread
from bench.scale import Scale
from ipamd.core.deadline import SystemClock
from ipamd.datastore.open import current_boot_id, open_datastore
from ipamd.datastore.store import SqlDatastore
from ipamd.model.attachment import Attachment, veth_name
from ipamd.model.cni_request import NetnsIdentity
from ipamd.model.eni import Eni, InstanceLimits
from ipamd.model.family import IPV4, IPV6, Family, IpNetwork, members
from ipamd.model.ids import AttachmentKey, EniId, MacAddress, SubnetId, parse_key
from ipamd.model.plan import Plan, plan
from ipamd.model.pool_settings import PoolSettings
from ipamd.model.pool_snapshot import pool_snapshot

LIMITS = InstanceLimits("c5.18xlarge", eni_count=15, ipv4_per_eni=50)
LARGE, SMALL = (15, 49, 737), (1, 1, 10)
"""ENIs, prefixes of each, and sandboxes. The large node has the most prefixes that 15 ENIs x 50 addresses allow; 737 is its max-pods
without prefixes."""

SETTINGS = PoolSettings(prefix_delegation=True, warm_prefix_target=1)
OPEN_ROUNDS = 5
_SUBNET = IPv6Network("2600:1f14:abc:de00::/64")


class Node:
    """The datastore of a node with ENIs, prefixes on each ENI, and sandboxes, in the file `path`."""

    def __init__(self, path: Path, eni_count: int, prefix_count: int, sandbox_count: int, family: Family = IPV4) -> None:
        self._number = 0
        self._store = _open(path, family)
        with self._store.transaction() as unit:
            for index in range(eni_count):
                eni = _eni(index)
                unit.put_eni(eni)
                for number in range(prefix_count):
                    prefix = _prefix(eni, number, family)
                    unit.add_addresses(eni.eni_id, members(prefix), prefix=prefix)
        for _ in range(sandbox_count):
            self.attach()

    def attach(self) -> AttachmentKey:
        """Reserve an address and record its attachment, as ADD does. Returns: the key of the attachment."""
        self._number += 1
        key = parse_key(f"{self._number:064x}", "eth0")
        row = self._store.reserve(key)
        attachment = Attachment(
            key=key,
            address=row.address,
            eni_id=row.eni_id,
            route_table=254,
            host_veth=veth_name(key, prefix="eni"),
            netns=f"/run/netns/{self._number}",
            netns_identity=NetnsIdentity(4, self._number),
            fingerprint="f" * 64,
            result=b"{}",
            created_at=datetime.now(UTC),
        )
        with self._store.transaction() as unit:
            unit.confirm(attachment)
        return key

    def plan(self) -> Plan:
        """Make a plan, as the pool does after each ADD."""
        return plan(pool_snapshot(self._store.stock(), limits=LIMITS), settings=SETTINGS)

    def detach(self, key: AttachmentKey) -> None:
        """Undo `attach`, so that the number of sandboxes stays the same."""
        with self._store.transaction() as unit:
            address = unit.unassign(key, cooldown=timedelta(0), reason="DEL").address
            unit.free(address, reason="cooled")

    def close(self) -> None:
        """Close the file."""
        self._store.close()


def measure(scale: Scale) -> list[Figure]:
    """Fill both nodes, measure them in turn, and open the large node's file several times."""
    with tempfile.TemporaryDirectory(dir="/run") as directory:
        large_path = Path(directory) / "large" / "state.db"
        nodes = [Node(large_path, *LARGE), Node(Path(directory) / "small" / "state.db", *SMALL)]
        adds: list[list[float]] = [[], []]
        plans: list[float] = []
        for _ in range(scale.daemon_rounds):
            for node, samples in zip(nodes, adds, strict=True):
                began = time.perf_counter()
                key = node.attach()
                attached = time.perf_counter()
                node.plan()
                planned = time.perf_counter()
                samples.append((planned - began) * 1e3)
                if node is nodes[0]:
                    plans.append((planned - attached) * 1e3)
                node.detach(key)
        for node in nodes:
            node.close()
        opens = [_opening_s(copy) for copy in _copies(large_path, OPEN_ROUNDS)]
    large, small = (median(samples) for samples in adds)
    what = f"{LARGE[0]} ENIs x {LARGE[1]} prefixes, {LARGE[2]} sandboxes, in process"
    note = f"{large:.3f} ms there, {small:.3f} ms with {SMALL[2]} sandboxes; {what}"
    return [
        Figure("scale_add_p50_ratio", large / small, "x", None, "", len(adds[0]), note),
        Figure("scale_plan_ms", median(plans), "ms", None, "", len(plans), f"{spread(plans)}; {what}"),
        Figure("scale_open_s", median(opens), "s", None, "", len(opens), f"{spread(opens)}; {what}"),
    ]


def _open(path: Path, family: Family = IPV4) -> SqlDatastore:
    return open_datastore(path, boot_id=current_boot_id(), clock=SystemClock(), family=family).datastore


def _prefix(eni: Eni, number: int, family: Family) -> IpNetwork:
    if family is IPV6:
        return IPv6Network((int(_SUBNET.network_address) + ((1 + number) << 48), family.prefix_length))
    return IPv4Network((int(eni.primary_address) + 252 + 16 * number, family.prefix_length))


def _copies(path: Path, count: int) -> list[Path]:
    copies = [path.parent.with_name(f"copy-{number}") / path.name for number in range(count)]
    for copy in copies:
        shutil.copytree(path.parent, copy.parent)
    return copies


def _opening_s(path: Path) -> float:
    began = time.perf_counter()
    store = _open(path)
    lasted_s = time.perf_counter() - began
    store.close()
    return lasted_s


def _eni(index: int) -> Eni:
    return Eni(
        eni_id=EniId(f"eni-{index:017x}"),
        mac=MacAddress(f"02:00:00:00:00:{index:02x}"),
        device_index=index,
        network_card=0,
        subnet_id=SubnetId("subnet-1"),
        subnet_cidr=IPv4Network("10.0.0.0/8"),
        primary_address=IPv4Address(f"10.{index}.0.4"),
        is_primary=index == 0,
        host_ready=True,
    )
