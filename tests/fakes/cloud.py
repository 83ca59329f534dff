"""EC2 as dictionaries with one subnet."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network, IPv6Network

from ipamd.model.call_report import ANSWERED, ATTEMPT_BUCKETS_MS, CallOutcome, CallReport, StatusReport
from ipamd.model.cloud import (
    INTENT_TAG,
    AddressHolder,
    CallUnderWay,
    DescribedEni,
    EniRequest,
    InstanceIdentity,
    all_addresses,
)
from ipamd.model.eni import InstanceLimits
from ipamd.model.errors import (
    CloudError,
    CloudNotFoundError,
    DeviceIndexTakenError,
    EniLimitError,
    IpamError,
    SubnetExhaustedError,
)
from ipamd.model.family import IPV4, Family, IpAddress, IpNetwork
from ipamd.model.ids import EniId, InstanceId, MacAddress, SubnetId
from ipamd.model.subnets import CLUSTER_TAG_PREFIX, ROLE_TAG, DescribedSubnet

INSTANCE = InstanceId("i-0123456789abcdef0")
SUBNET = SubnetId("subnet-1")
SUBNET_CIDR = IPv4Network("10.0.0.0/20")
SUBNET_CIDR_6 = IPv6Network("2001:db8:1:2::/64")
PRIMARY = EniId("eni-primary")

IDENTITY = InstanceIdentity(
    instance_id=INSTANCE,
    instance_type="m5.large",
    region="us-west-2",
    availability_zone="us-west-2a",
    vpc_id="vpc-1",
    vpc_cidrs=(IPv4Network("10.0.0.0/16"),),
    primary_mac=MacAddress("02:00:00:00:00:01"),
    primary_eni_id=PRIMARY,
    primary_address=IPv4Address("10.0.0.10"),
    subnet_id=SUBNET,
    subnet_cidr=SUBNET_CIDR,
    security_group_ids=("sg-1",),
)
LIMITS = InstanceLimits("m5.large", 3, 10)


class FakeEc2:
    """Implements `Ec2`. `fail[method]` is raised before the call takes effect, `lose[method]` after it (a lost answer).

    `family`: of the pool that asks; with IPv6 the primary ENI has an address of it, and prefixes are /80s.
    """

    def __init__(self, *, limits: InstanceLimits = LIMITS, pool_size: int = 1000, family: Family = IPV4) -> None:
        self._lock = threading.RLock()
        self.before_release: Callable[[], None] = lambda: None
        self.limits = limits
        self.enis: dict[EniId, DescribedEni] = {}
        self.calls: Counter[str] = Counter()
        self.fail: dict[str, list[IpamError]] = {}
        self.failed: Counter[str] = Counter()
        self.lose: dict[str, list[IpamError]] = {}
        self.throttled: tuple[float, float] | None = None
        self.under_way: tuple[CallUnderWay, ...] = ()
        self.answers: list[tuple[DescribedEni, ...]] = []  # what a Describe of the instance tells first: lag, parts, oddities
        self.hidden: set[EniId] = set()  # ENIs that a Describe of the instance lacks
        self.described: dict[EniId, list[DescribedEni]] = {}  # what a Describe of the ENI tells first
        self.attached_count_max = 99  # below the limit, if volumes take places
        self.is_place_first = False  # of an attached ENI: its place is taken, rather than it is in use
        self._tokens: dict[str, EniId] = {}
        self._made_count = 1
        self.left_count = pool_size
        self.left_prefix_count = 128
        self.told_free_count: int | None = None  # what DescribeSubnets says, if it is not the truth
        self._fresh = (SUBNET_CIDR.network_address + n for n in range(20, 2048))
        self._fresh_prefixes: Iterator[IpNetwork] = (
            p for p in SUBNET_CIDR.subnets(new_prefix=28) if p.network_address >= IPv4Address("10.0.8.0")
        )
        self.states: dict[InstanceId, str] = {}
        self.reservations: dict[SubnetId, tuple[IPv4Network, ...]] = {}
        self.family = family
        if family.is_sparse:
            self._fresh_prefixes = (p for p in SUBNET_CIDR_6.subnets(new_prefix=80) if p.network_address > SUBNET_CIDR_6[0])
        own = DescribedSubnet(SUBNET, SUBNET_CIDR, IDENTITY.availability_zone, IDENTITY.vpc_id, 0)
        self.subnets: dict[SubnetId, DescribedSubnet] = {SUBNET: own}
        self._fresh_of: dict[SubnetId, Iterator[IPv4Address]] = {}
        self.enis[PRIMARY] = DescribedEni(
            PRIMARY,
            IDENTITY.primary_mac,
            SUBNET,
            IDENTITY.primary_address,
            status="in-use",
            attachment_id="attach-primary",
            attachment_status="attached",
            instance_id=INSTANCE,
            device_index=0,
            delete_on_termination=True,
            security_group_ids=IDENTITY.security_group_ids,
            has_ipv6=family.is_sparse,
        )

    def manage(self, eni_id: EniId, principal: str) -> None:
        """Have an AWS service manage an ENI."""
        self.enis[eni_id] = replace(self.enis[eni_id], operator=principal)

    def describe_enis(self, instance_id: InstanceId) -> tuple[DescribedEni, ...]:
        """See the port."""
        self._call("describe_enis")
        if self.answers:
            return self.answers.pop(0)
        shown = (e for e in self.enis.values() if e.instance_id == instance_id and e.eni_id not in self.hidden)
        return tuple(sorted(shown, key=lambda e: e.device_index))

    def attached(self) -> tuple[DescribedEni, ...]:
        """The attached ENIs, without a call: what the hypervisor knows."""
        return tuple(eni for eni in self.enis.values() if eni.instance_id)

    def describe_eni(self, eni_id: EniId) -> DescribedEni:
        """See the port."""
        self._call("describe_eni")
        told = self.described.get(eni_id)
        return told.pop(0) if told else self._eni(eni_id)

    def find_enis(self, eni_ids: Collection[EniId]) -> tuple[DescribedEni, ...]:
        """See the port."""
        self._call("find_enis")
        return tuple(sorted((self.enis[one] for one in eni_ids if one in self.enis), key=lambda eni: eni.eni_id))

    def find_by_token(self, token: str) -> tuple[DescribedEni, ...]:
        """See the port."""
        self._call("find_by_token")
        return tuple(eni for eni in self.enis.values() if eni.tags.get(INTENT_TAG) == token)

    def find_detached(self, tags: Mapping[str, str]) -> tuple[DescribedEni, ...]:
        """See the port."""
        if not tags:
            raise ValueError("no tag was named")
        self._call("find_detached")
        found = [eni for eni in self.enis.values() if eni.status == "available"]
        found = [
            eni
            for eni in found
            if all(key in eni.tags and eni.tags[key] == (value or eni.tags[key]) for key, value in tags.items())
        ]
        return tuple(sorted(found, key=lambda eni: eni.eni_id))

    def find_address(self, address: IpAddress, *, subnet_id: SubnetId | None = None) -> tuple[DescribedEni, ...]:
        """See the port."""
        self._call("find_address")

        def has_it(eni: DescribedEni) -> bool:
            if subnet_id:
                return eni.subnet_id == subnet_id and any(address in prefix for prefix in eni.prefixes)
            return address in {eni.primary_address, *eni.secondary_addresses}

        return tuple(sorted(filter(has_it, self.enis.values()), key=lambda eni: eni.eni_id))

    def find_holder(self, address: IpAddress) -> AddressHolder | None:
        """See the port; `states`: of instances that do not run."""
        self._call("find_holder")
        for eni in self.enis.values():
            if eni.instance_id and address in {eni.primary_address, *eni.secondary_addresses}:
                instance_id = InstanceId(eni.instance_id)
                state = self.states.get(instance_id, "running")
                return AddressHolder(instance_id, state, eni.eni_id, address == eni.primary_address, eni.is_source_checked)
        return None

    def explicit_reservations(self, subnet_id: SubnetId) -> tuple[IPv4Network, ...]:
        """See the port."""
        self._call("explicit_reservations")
        return self.reservations.get(subnet_id, ())

    def describe_attached_eni(self, eni_id: EniId) -> DescribedEni:
        """See the port."""
        return self.describe_eni(eni_id)

    def subnet_cidr(self, subnet_id: SubnetId) -> IPv4Network:
        """See the port."""
        return self.subnets[subnet_id].cidr if subnet_id in self.subnets else SUBNET_CIDR

    def describe_subnets(self, *, vpc_id: str, availability_zone: str) -> tuple[DescribedSubnet, ...]:
        """See the port."""
        self._call("describe_subnets")
        of_zone = [one for one in self.subnets.values() if (one.vpc_id, one.availability_zone) == (vpc_id, availability_zone)]
        return tuple(self._told(one) for one in sorted(of_zone, key=lambda one: one.subnet_id))

    def describe_subnet(self, subnet_id: SubnetId) -> DescribedSubnet:
        """See the port."""
        self._call("describe_subnet")
        if subnet_id not in self.subnets:
            raise CloudNotFoundError(f"subnet {subnet_id} does not exist")
        return self._told(self.subnets[subnet_id])

    def add_subnet(
        self,
        subnet_id: str,
        cidr: str,
        *,
        free_count: int = 1000,
        zone: str = "",
        vpc_id: str = "",
        has_ipv6: bool = True,
        **tags: str,
    ) -> None:
        """Make another subnet; `free_count` is what it has. Tags: `role` and `cluster` for the two that the pool reads."""
        names = {"role": ROLE_TAG, "cluster": f"{CLUSTER_TAG_PREFIX}{tags.get('cluster')}"}
        self.subnets[SubnetId(subnet_id)] = DescribedSubnet(
            SubnetId(subnet_id),
            IPv4Network(cidr),
            zone or IDENTITY.availability_zone,
            vpc_id or IDENTITY.vpc_id,
            free_count,
            {names[name]: value for name, value in tags.items()},
            has_ipv6,
        )

    def _told(self, subnet: DescribedSubnet) -> DescribedSubnet:
        if subnet.subnet_id != SUBNET:
            return subnet
        return replace(subnet, free_count=self.left_count if self.told_free_count is None else self.told_free_count)

    def subnet_free_count(self, subnet_id: SubnetId) -> int:
        """See the port."""
        self._call("subnet_free_count")
        if subnet_id in self.subnets and subnet_id != SUBNET:
            return self.subnets[subnet_id].free_count
        return self.left_count if self.told_free_count is None else self.told_free_count

    def create_eni(self, request: EniRequest) -> DescribedEni:
        """See the port."""
        self._call("create_eni")
        with self._lock:
            if request.client_token not in self._tokens:
                if request.address_count + request.prefix_count > self.limits.slots_per_eni:
                    raise EniLimitError("an ENI has fewer slots", code="PrivateIpAddressLimitExceeded")
                if self._left(request.subnet_id) < 1 + request.address_count:
                    raise SubnetExhaustedError(f"subnet {request.subnet_id} has no {1 + request.address_count} free addresses")
                self._made_count += 1  # EC2 never uses an ID again
                number = self._made_count
                eni_id = EniId(f"eni-{number}")
                self.enis[eni_id] = DescribedEni(
                    eni_id,
                    MacAddress(f"02:00:00:00:{number >> 8:02x}:{number & 0xFF:02x}"),
                    request.subnet_id,
                    self._take(1, request.subnet_id).pop(),
                    frozenset(self._take(request.address_count, request.subnet_id)),
                    self._take_prefixes(request.prefix_count),
                    tags=dict(request.tags),
                    description=request.description,
                    security_group_ids=request.security_group_ids,
                    connection_tracking=request.connection_tracking,
                    has_ipv6=request.ipv6_address_count > 0,
                )
                self._tokens[request.client_token] = eni_id
        self._lose("create_eni")
        return self.enis[self._tokens[request.client_token]]

    def attach_eni(self, eni_id: EniId, *, instance_id: InstanceId, device_index: int, network_card: int) -> str:
        """See the port."""
        self._call("attach_eni")
        with self._lock:
            eni = self._eni(eni_id)
            if eni.instance_id and not (self.is_place_first and eni.device_index == device_index):
                raise _refused(f"ENI {eni_id} is in use")
            on_card = [e for e in self.enis.values() if (e.instance_id, e.network_card) == (instance_id, network_card)]
            if any(e.device_index == device_index for e in on_card):
                raise DeviceIndexTakenError(f"instance {instance_id} has a device {device_index} already")
            if len(on_card) >= min(self.limits.eni_count_of(network_card), self.attached_count_max):
                raise EniLimitError(f"instance {instance_id} takes no further ENI", details="AttachmentLimitExceeded")
            self.enis[eni_id] = replace(
                eni,
                status="in-use",
                attachment_id=f"attach-{eni_id}",
                attachment_status="attached",
                instance_id=instance_id,
                device_index=device_index,
                network_card=network_card,
            )
        self._lose("attach_eni")
        return f"attach-{eni_id}"

    def set_delete_on_termination(self, eni_id: EniId, *, attachment_id: str) -> None:
        """See the port."""
        self._call("set_delete_on_termination")
        self.enis[eni_id] = replace(self._eni(eni_id), delete_on_termination=True)

    def set_security_groups(self, eni_id: EniId, *, security_group_ids: tuple[str, ...]) -> None:
        """See the port."""
        self._call("set_security_groups")
        self.enis[eni_id] = replace(self._eni(eni_id), security_group_ids=security_group_ids)

    def detach_eni(self, attachment_id: str) -> None:
        """See the port."""
        self.before_release()
        self._call("detach_eni")
        for eni in list(self.enis.values()):
            if eni.attachment_id == attachment_id:
                self.enis[eni.eni_id] = replace(
                    eni, status="available", attachment_id="", attachment_status="", instance_id="", device_index=-1
                )

    def delete_eni(self, eni_id: EniId) -> None:
        """See the port."""
        self._call("delete_eni")
        with self._lock:
            if eni_id in self.enis and self.enis[eni_id].attachment_id:
                raise _refused(f"ENI {eni_id} is currently in use")
            if (eni := self.enis.pop(eni_id, None)) is not None:
                self._free(eni)

    def assign_addresses(self, eni_id: EniId, *, count: int) -> frozenset[IPv4Address]:
        """See the port."""
        self._call("assign_addresses")
        with self._lock:
            eni = self._eni(eni_id)
            if len(eni.secondary_addresses) + len(eni.prefixes) + count > self.limits.slots_per_eni:
                raise EniLimitError(f"ENI {eni_id} has no {count} free slots", details="PrivateIpAddressLimitExceeded")
            taken = frozenset(self._take(count, eni.subnet_id))
            self.enis[eni_id] = replace(eni, secondary_addresses=eni.secondary_addresses | taken)
        self._lose("assign_addresses")
        return taken

    def assign_address(self, eni_id: EniId, address: IpAddress) -> None:
        """See the port."""
        self._call("assign_address")
        with self._lock:
            eni = self._eni(eni_id)
            if len(eni.secondary_addresses) + len(eni.prefixes) + 1 > self.limits.slots_per_eni:
                raise EniLimitError(f"ENI {eni_id} has no free slot", details="PrivateIpAddressLimitExceeded")
            for other in self.enis.values():
                addresses = all_addresses(other.secondary_addresses, other.prefixes) | {other.primary_address}
                if other.eni_id != eni_id and address in addresses:
                    raise _refused(f"{address} is assigned to {other.eni_id}")
            self.enis[eni_id] = replace(eni, secondary_addresses=eni.secondary_addresses | {address})
        self._lose("assign_address")

    def withdraw_address(self, eni_id: EniId, address: IpAddress) -> None:
        """See the port."""
        self.before_release()
        self._call("withdraw_address")
        with self._lock:
            eni = self._eni(eni_id)
            if address not in eni.secondary_addresses:
                raise CloudNotFoundError(f"{address} is not assigned to interface {eni_id}")
            self.enis[eni_id] = replace(eni, secondary_addresses=eni.secondary_addresses - {address})

    def assign_prefixes(self, eni_id: EniId, *, count: int) -> frozenset[IpNetwork]:
        """See the port."""
        self._call("assign_prefixes")
        with self._lock:
            eni = self._eni(eni_id)
            if len(eni.secondary_addresses) + len(eni.prefixes) + count > self.limits.slots_per_eni:
                raise EniLimitError(f"ENI {eni_id} has no {count} free slots", details="PrivateIpAddressLimitExceeded")
            taken = self._take_prefixes(count)
            self.enis[eni_id] = replace(eni, prefixes=eni.prefixes | taken, has_ipv6=eni.has_ipv6 or self.family.is_sparse)
        self._lose("assign_prefixes")
        return taken

    def unassign(self, eni_id: EniId, *, addresses: Iterable[IpAddress], prefixes: Iterable[IpNetwork]) -> None:
        """See the port."""
        self.before_release()
        self._call("unassign")
        eni = self._eni(eni_id)
        singles, blocks = eni.secondary_addresses & set(addresses), eni.prefixes & set(prefixes)
        self.enis[eni_id] = replace(eni, secondary_addresses=eni.secondary_addresses - singles, prefixes=eni.prefixes - blocks)
        self._free(replace(eni, primary_address=None, secondary_addresses=singles, prefixes=blocks))

    def instance_limits(self, instance_type: str) -> InstanceLimits:
        """See the port."""
        return self.limits

    def call_reports(self) -> Mapping[str, CallReport]:
        """See the port: by method, as `calls`; every call takes no time, and one that was told to fail was refused."""
        return {
            method: CallReport(
                outcomes={CallOutcome.OK: count - self.failed[method], CallOutcome.REFUSED: self.failed[method]},
                statuses={ANSWERED: StatusReport(count - self.failed[method], 0.0)},
                buckets=(count,) * len(ATTEMPT_BUCKETS_MS),
                count=count,
                left_count=10.0,
                rate_per_s=1.0,
            )
            for method, count in self.calls.items()
        }

    def throttling(self) -> tuple[float, float] | None:
        """See the port: a test may say when it throttled."""
        return self.throttled

    def release_idle(self, *, is_needed_soon: bool) -> None:
        """See the port: there is nothing to let go of."""

    def calls_under_way(self) -> tuple[CallUnderWay, ...]:
        """See the port: a test may say that a call is being retried."""
        return self.under_way

    def _eni(self, eni_id: EniId) -> DescribedEni:
        try:
            return self.enis[eni_id]
        except KeyError:
            raise CloudNotFoundError(f"ENI {eni_id} does not exist") from None

    def _left(self, subnet_id: SubnetId) -> int:
        return self.left_count if subnet_id == SUBNET or subnet_id not in self.subnets else self.subnets[subnet_id].free_count

    def _take(self, count: int, subnet_id: SubnetId = SUBNET) -> list[IPv4Address]:
        if self._left(subnet_id) < count:
            raise SubnetExhaustedError(f"subnet {subnet_id} has no {count} free addresses")
        if subnet_id == SUBNET or subnet_id not in self.subnets:
            self.left_count -= count
            return [address for address, _ in zip(self._fresh, range(count), strict=False)]
        subnet = self.subnets[subnet_id]
        self.subnets[subnet_id] = replace(subnet, free_count=subnet.free_count - count)
        fresh = self._fresh_of.setdefault(subnet_id, iter(list(subnet.cidr.hosts())[4:]))
        return [next(fresh) for _ in range(count)]

    def _take_prefixes(self, count: int) -> frozenset[IpNetwork]:
        if self.left_prefix_count < count:
            what = f"{count} free /{self.family.prefix_length}s"
            raise SubnetExhaustedError(f"subnet {SUBNET} has no {what}", details="InsufficientCidrBlocks")
        self.left_prefix_count -= count
        return frozenset(next(self._fresh_prefixes) for _ in range(count))

    def _free(self, eni: DescribedEni) -> None:
        """What is on this has just left an ENI; here nobody gets it again."""

    def _call(self, method: str) -> None:
        self.calls[method] += 1
        if self.fail.get(method):
            self.failed[method] += 1
            raise self.fail[method].pop(0)

    def _lose(self, method: str) -> None:
        if self.lose.get(method):
            raise self.lose[method].pop(0)


def _refused(why: str) -> CloudError:
    """A refusal that EC2 has answered, as the adapter raises it: nothing was done."""
    error = CloudError(why, details="InvalidParameterValue", code="InvalidParameterValue")
    error.may_have_happened = False
    return error
