"""Builders for the datastore's tests: a clock that only tests move, ENIs, attachments, and ways to open a store."""

from __future__ import annotations

import shutil
import sqlite3
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from ipamd.datastore.open import OpenedDatastore, open_datastore
from ipamd.datastore.store import SqlDatastore
from ipamd.model.address import Address, AddressState
from ipamd.model.attachment import Attachment, veth_name
from ipamd.model.cni_request import NetnsIdentity
from ipamd.model.eni import Eni, EniState
from ipamd.model.family import Family
from ipamd.model.ids import AttachmentKey, EniId, MacAddress, SubnetId, parse_key
from ipamd.model.legs.branch_eni import Branch
from ipamd.model.record import replace

BOOT = "11111111-2222-3333-4444-555555555555"
START = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
COOLDOWN = timedelta(seconds=30)


class FakeClock:
    """Both clocks, moved by hand; `pause` stands in for sleep."""

    def __init__(self) -> None:
        self.at = START
        self.ticks = 1000.0

    def now(self) -> datetime:
        return self.at

    def monotonic(self) -> float:
        return self.ticks

    def pause(self, duration_s: float) -> None:
        self.ticks += duration_s
        self.at += timedelta(seconds=duration_s)


def eni_id(number: int) -> EniId:
    """The ID of the ENI that `an_eni` builds."""
    return EniId(f"eni-{number:017x}")


def an_eni(number: int = 0, *, state: EniState = EniState.ATTACHED, host_ready: bool = True, managed: bool = True) -> Eni:
    """An ENI with device index `number` and primary address 10.0.<number>.4."""
    return Eni(
        eni_id=eni_id(number),
        mac=MacAddress(f"02:00:00:00:00:{number:02x}"),
        device_index=number,
        network_card=0,
        subnet_id=SubnetId("subnet-1"),
        subnet_cidr=IPv4Network("10.0.0.0/16"),
        primary_address=IPv4Address(f"10.0.{number}.4"),
        is_primary=number == 0,
        state=state,
        host_ready=host_ready,
        created_by_us=number > 0,
        managed=managed,
    )


def ip(text: str) -> IPv4Address:
    """Short for IPv4Address."""
    return IPv4Address(text)


def a_key(number: int = 1, ifname: str = "eth0") -> AttachmentKey:
    """The key of one interface of sandbox `number`."""
    return parse_key(f"{number:064x}", ifname)


def an_attachment(address: Address, key: AttachmentKey, *, at: datetime = START) -> Attachment:
    """What `confirm` and `adopt` take."""
    return Attachment(
        key=key,
        address=address.address,
        eni_id=address.eni_id,
        route_table=254,
        host_veth=veth_name(key, prefix="eni"),
        netns=f"/run/netns/{key.container_id[-4:]}",
        netns_identity=NetnsIdentity(4, 4026531840),
        fingerprint="f",
        result=b'{"cniVersion": "1.1.0"}',
        created_at=at,
        pod_namespace="default",
        pod_name="web-0",
        other_address=address.other_address,
    )


def a_branch(vlan: int, key: AttachmentKey | None = None, *, address: str = "", at: datetime = START) -> Attachment:
    """What `confirm` takes: sandbox 100 and VLAN ID, which has address 10.9.0.<vlan> of ENI eni-b<vlan>."""
    key = key or a_key(100 + vlan)
    row = Address(ip(address or f"10.9.0.{vlan}"), EniId(f"eni-b{vlan:04x}"), AddressState.FREE, at)
    branch = Branch(vlan, MacAddress(f"06:00:00:00:00:{vlan:02x}"), ip("10.9.0.1"), is_strict=vlan % 2 == 0)
    return replace(an_attachment(row, key, at=at), uplink=branch, route_table=branch.route_table, host_veth=f"vlan{vlan:011x}")


def open_at(path: Path, *, boot_id: str = BOOT, clock: FakeClock | None = None, **options: object) -> OpenedDatastore:
    """Open a store of this boot without waiting for a predecessor."""
    return open_datastore(path, boot_id=boot_id, clock=clock or FakeClock(), lock_wait_s=0.0, **options)  # type: ignore[arg-type]


def fill(store: SqlDatastore, *, addresses: int = 4, enis: int = 1) -> None:
    """Give each of `enis` ENIs `addresses` free secondary addresses 10.0.<eni>.100 and up."""
    with store.transaction() as unit:
        for number in range(enis):
            unit.put_eni(an_eni(number))
            unit.add_addresses(eni_id(number), [ip(f"10.0.{number}.{100 + i}") for i in range(addresses)])


def attach(store: SqlDatastore, key: AttachmentKey, *, at: datetime = START, egress: Family | None = None) -> Attachment:
    """Reserve and confirm."""
    attachment = an_attachment(store.reserve(key, extra_family=egress), key, at=at)
    with store.transaction() as unit:
        unit.confirm(attachment)
    return attachment


def crashed_copy(store_path: Path, target: Path) -> Path:
    """Copy what is on disk at this instant, WAL included: what a process that starts after kill -9 would find."""
    target.mkdir(parents=True)
    for suffix in ("", "-wal"):
        source = Path(f"{store_path}{suffix}")
        if source.exists():
            shutil.copyfile(source, target / f"state.db{suffix}")
    return target / "state.db"


def raw(path: Path, *statements: str) -> None:
    """Change a closed file behind the datastore's back, constraints off where SQLite allows it."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        for statement in statements:
            connection.execute(statement)
    finally:
        connection.close()
