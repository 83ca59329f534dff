"""A model of EC2 for a fleet: ENIs, subnets, latencies, request limits, and a time of disturbance.

Answers have botocore's structure, and refusals EC2's codes, because the daemon's own adapter reads them. The model has the objects
that the pool's calls change. It has no eventual consistency except for attachments (the chaos run has that), no instance quotas, and
no other users of the account.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network
from random import Random
from typing import Any

from bench.fleet.buckets import Buckets
from bench.fleet.traces import NODE_TYPE
from bench.fleet.world import World
from ipamd.model.eni import InstanceLimits

LATENCY_S: Mapping[str, tuple[float, float]] = {
    "AssignPrivateIpAddresses": (0.3, 0.8),
    "UnassignPrivateIpAddresses": (0.3, 0.8),
    "CreateNetworkInterface": (0.4, 1.2),
    "DeleteNetworkInterface": (0.2, 0.6),
    "AttachNetworkInterface": (0.4, 1.2),
    "DetachNetworkInterface": (0.3, 0.8),
    "ModifyNetworkInterfaceAttribute": (0.2, 0.5),
}
"""Shortest and longest time of an answer; times between are equally likely. A Describe has `DESCRIBE_LATENCY_S`. Ours: of the order
that operators see; no figure of the report depends on the exact values."""

DESCRIBE_LATENCY_S = (0.1, 0.3)

ATTACHED_AFTER_S = (1.5, 4.0)
"""Shortest and longest time from the answer to Attach until the ENI is attached and its link exists. Ours: within the 1 to 10 s that
an attachment takes at EC2."""

DETACHED_AFTER_S = (2.0, 5.0)

NODES_PER_SUBNET = 250
SUBNET_BITS = 14
"""Host bits of a subnet: a /18 with 16,379 addresses. Ours: enough for 57 addresses on each of its NODES_PER_SUBNET nodes."""


class Refused(Exception):
    """EC2 refuses a call. `code`, `status`: EC2's error code and HTTP status."""

    def __init__(self, code: str, message: str = "", *, status: int = 400) -> None:
        super().__init__(code)
        self.code, self.message, self.status = code, message, status


@dataclass(slots=True)
class Disturbance:
    """A time in which EC2 is disturbed, from `begins_s` to `ends_s`.

    throttled: share of the calls that are throttled.
    failed: share of the calls that fail without effect.
    lost: share of the calls that take effect, but are answered with an error.
    slowness: factor of the latencies.
    """

    begins_s: float
    ends_s: float
    throttled: float = 0.6
    failed: float = 0.15
    lost: float = 0.05
    slowness: float = 5.0

    def is_on(self, now_s: float) -> bool:
        """Whether EC2 is disturbed now."""
        return self.begins_s <= now_s < self.ends_s


@dataclass(slots=True)
class ModelEni:
    """One ENI. `attached_s`, `detached_s`: the times at which an attachment and a detachment are complete. `instance`: -1 for none."""

    number: int
    subnet: int
    primary: int
    addresses: set[int] = field(default_factory=set)
    prefixes: set[int] = field(default_factory=set)
    instance: int = -1
    device: int = -1
    attached_s: float = 0.0
    detached_s: float = 0.0
    ends_with_instance: bool = False
    tags: list[dict[str, str]] = field(default_factory=list)
    description: str = ""

    @property
    def eni_id(self) -> str:
        """The ENI's ID, in EC2's form."""
        return f"eni-{self.number:017x}"

    @property
    def mac(self) -> str:
        """The ENI's MAC, in EC2's form."""
        return ":".join(f"{self.number >> shift & 0xFF:02x}" for shift in (40, 32, 24, 16, 8, 0)).replace("00:", "02:", 1)


class Subnet:
    """One subnet. Single addresses are from its lower half, and /28s from its upper half. Released ones are assigned again."""

    def __init__(self, number: int) -> None:
        base = (10 << 24) | (number << SUBNET_BITS)
        self.subnet_id = f"subnet-{number:08x}"
        self.cidr = IPv4Network((base, 32 - SUBNET_BITS))
        self.singles = deque(range(base + 4, base + 2 ** (SUBNET_BITS - 1)))
        self.blocks = deque(range(base + 2 ** (SUBNET_BITS - 1), base + 2**SUBNET_BITS - 16, 16))

    @property
    def free_count(self) -> int:
        """Number of free addresses, as in the answer of DescribeSubnets."""
        return len(self.singles) + 16 * len(self.blocks)

    def take(self, count: int) -> list[int]:
        """Take single addresses. Raises: Refused."""
        while len(self.singles) < count and self.blocks:
            first = self.blocks.pop()
            self.singles.extend(range(first, first + 16))
        if len(self.singles) < count:
            raise Refused("InsufficientFreeAddressesInSubnet", f"subnet {self.subnet_id} has not enough free addresses")
        return [self.singles.popleft() for _ in range(count)]

    def take_blocks(self, count: int) -> list[int]:
        """Take /28s. Returns: their first addresses. Raises: Refused."""
        if len(self.blocks) < count:
            raise Refused("InsufficientCidrBlocks", f"subnet {self.subnet_id} has not enough free /28s")
        return [self.blocks.popleft() for _ in range(count)]


class Ec2Model:
    """EC2 of one account and region. `calls`: action -> number of attempts, throttled ones included, as EC2 counts them."""

    def __init__(self, world: World, *, seed: int, disturbance: Disturbance | None = None) -> None:
        self.world = world
        self.buckets = Buckets()
        self.calls: Counter[str] = Counter()
        self._held_count = 0
        self._held_s, self._held_since_s, self._begins_s = 0.0, 0.0, 0.0
        self._disturbance = disturbance
        self._draw = Random(f"ec2/{seed}")
        self._subnets: dict[int, Subnet] = {}
        self.enis: dict[str, ModelEni] = {}
        self._of_instance: dict[int, dict[str, ModelEni]] = {}
        self._limits: dict[int, InstanceLimits] = {}
        self._tokens: dict[str, ModelEni] = {}
        self._count = 0

    def add_instance(self, index: int, limits: InstanceLimits = NODE_TYPE) -> ModelEni:
        """Start an instance. Returns: its primary ENI."""
        self._limits[index] = limits
        eni = self._new_eni(index // NODES_PER_SUBNET)
        eni.instance, eni.device, eni.ends_with_instance = index, 0, True
        self._of_instance[index] = {eni.eni_id: eni}
        return eni

    def subnet(self, number: int) -> Subnet:
        """Return the subnet with this number. It is made at the first call."""
        return self._subnets.setdefault(number, Subnet(number)) if number not in self._subnets else self._subnets[number]

    def enis_of(self, instance: int) -> Mapping[str, ModelEni]:
        """Return the ENIs of an instance by ID, also those that are attaching."""
        return self._of_instance[instance]

    def reset(self) -> None:
        """Begin to measure: set all counters to 0, and fill all buckets."""
        self.calls.clear()
        self.buckets = Buckets()
        self._held_s, self._held_since_s, self._begins_s = 0.0, self.world.now_s, self.world.now_s

    def held_average(self) -> float:
        """Return how many addresses for pods the nodes had at EC2, on average since the measurement began."""
        self._hold(0)
        return self._held_s / max(self.world.now_s - self._begins_s, 1e-9)

    def call(self, api: str, params: Mapping[str, Any], *, instance: int) -> Mapping[str, Any]:
        """Make one attempt of a call, which blocks for its latency. Returns: the answer. Raises: Refused."""
        self.world.sleep(self.latency_s(api))
        return self.answer(api, params, instance=instance)

    def latency_s(self, api: str) -> float:
        """Draw the latency of an attempt that begins now, in seconds."""
        low, high = LATENCY_S.get(api, DESCRIBE_LATENCY_S)
        return (low + (high - low) * self._draw.random()) * self._slowness()

    def answer(self, api: str, params: Mapping[str, Any], *, instance: int) -> Mapping[str, Any]:
        """Answer one attempt, whose latency is over. Raises: Refused."""
        self.calls[api] += 1
        if not self.buckets.take(api, now_s=self.world.now_s):
            raise Refused("RequestLimitExceeded", "Request limit exceeded.", status=503)
        disturbance = self._disturbed()
        luck = self._draw.random() if disturbance else 1.0
        if disturbance and luck < disturbance.throttled:
            self.buckets.throttled[api] += 1
            raise Refused("RequestLimitExceeded", "Request limit exceeded.", status=503)
        if disturbance and luck < disturbance.throttled + disturbance.failed:
            raise Refused("Unavailable", "The service is unavailable. Please try again shortly.", status=503)
        answer = getattr(self, f"_{api}")(params, instance)
        if disturbance and luck < disturbance.throttled + disturbance.failed + disturbance.lost:
            raise Refused("InternalError", "An internal error has occurred", status=500)
        return answer if isinstance(answer, dict) else {}

    def _disturbed(self) -> Disturbance | None:
        known = self._disturbance
        return known if known is not None and known.is_on(self.world.now_s) else None

    def _slowness(self) -> float:
        known = self._disturbed()
        return known.slowness if known is not None else 1.0

    def _CreateNetworkInterface(self, params: Mapping[str, Any], _: int) -> dict[str, Any]:
        eni = self._tokens.get(params["ClientToken"])
        if eni is None:
            subnet = next(known for known in self._subnets.values() if known.subnet_id == params["SubnetId"])
            eni = self._new_eni((int(subnet.cidr.network_address) >> SUBNET_BITS) & 0x3FF)
            self._fill(eni, params.get("SecondaryPrivateIpAddressCount", 0), params.get("Ipv4PrefixCount", 0))
            eni.tags = params["TagSpecifications"][0]["Tags"] if "TagSpecifications" in params else []
            eni.description = params["Description"]
            self._tokens[params["ClientToken"]] = eni
        return {"NetworkInterface": self._described(eni)}

    def _AttachNetworkInterface(self, params: Mapping[str, Any], instance: int) -> dict[str, Any]:
        eni, present = self._eni(params), self._of_instance[instance]
        if eni.eni_id not in present:
            if len(present) >= self._limits[instance].eni_count:
                raise Refused("AttachmentLimitExceeded", "Interface count exceeds the limit of the instance type")
            if any(other.device == params["DeviceIndex"] for other in present.values()):
                raise Refused("InvalidParameterValue", "Instance already has an interface attached at device index")
            eni.instance, eni.device = instance, params["DeviceIndex"]
            eni.attached_s = self.world.now_s + self._draw.uniform(*ATTACHED_AFTER_S)
            present[eni.eni_id] = eni
        return {"AttachmentId": f"attach-{eni.eni_id}"}

    def _ModifyNetworkInterfaceAttribute(self, params: Mapping[str, Any], _: int) -> None:
        self._eni(params).ends_with_instance = True

    def _DetachNetworkInterface(self, params: Mapping[str, Any], instance: int) -> None:
        eni = self._of_instance[instance].pop(params["AttachmentId"].removeprefix("attach-"), None)
        if eni is None:
            raise Refused("InvalidAttachmentID.NotFound", "The attachment does not exist")
        eni.instance, eni.device = -1, -1
        eni.detached_s = self.world.now_s + self._draw.uniform(*DETACHED_AFTER_S)

    def _DeleteNetworkInterface(self, params: Mapping[str, Any], _: int) -> None:
        eni = self._eni(params)
        if eni.instance >= 0 or self.world.now_s < eni.detached_s:
            raise Refused("InvalidParameterValue", f"Network interface '{eni.eni_id}' is currently in use.")
        self._empty(eni, set(eni.addresses), set(eni.prefixes))
        self.subnet(eni.subnet).singles.append(eni.primary)
        del self.enis[eni.eni_id]

    def _AssignPrivateIpAddresses(self, params: Mapping[str, Any], instance: int) -> dict[str, Any]:
        eni = self._eni(params)
        count, block_count = params.get("SecondaryPrivateIpAddressCount", 0), params.get("Ipv4PrefixCount", 0)
        if len(eni.addresses) + len(eni.prefixes) + count + block_count > self._limits[instance].slots_per_eni:
            raise Refused("PrivateIpAddressLimitExceeded", "Number of private addresses will exceed limit.")
        addresses, blocks = self._fill(eni, count, block_count)
        return {
            "AssignedPrivateIpAddresses": [{"PrivateIpAddress": str(IPv4Address(one))} for one in addresses],
            "AssignedIpv4Prefixes": [{"Ipv4Prefix": f"{IPv4Address(one)}/28"} for one in blocks],
        }

    def _UnassignPrivateIpAddresses(self, params: Mapping[str, Any], _: int) -> None:
        eni = self._eni(params)
        addresses = {int(IPv4Address(one)) for one in params.get("PrivateIpAddresses", ())}
        blocks = {int(IPv4Network(one).network_address) for one in params.get("Ipv4Prefixes", ())}
        if not addresses <= eni.addresses or not blocks <= eni.prefixes:
            raise Refused("InvalidParameterValue", f"Some of the addresses are not assigned to interface {eni.eni_id}")
        self._empty(eni, addresses, blocks)

    def _DescribeNetworkInterfaces(self, params: Mapping[str, Any], instance: int) -> dict[str, Any]:
        if "NetworkInterfaceIds" in params:
            found = [self._eni({"NetworkInterfaceId": params["NetworkInterfaceIds"][0]})]
        elif params["Filters"][0]["Name"].startswith("tag:"):
            eni = self._tokens.get(params["Filters"][0]["Values"][0])
            found = [eni] if eni is not None and eni.eni_id in self.enis else []
        else:
            found = list(self._of_instance[instance].values())
        return {"NetworkInterfaces": [self._described(eni) for eni in found]}

    def _DescribeSubnets(self, params: Mapping[str, Any], _: int) -> dict[str, Any]:
        wanted = params.get("SubnetIds")
        found = [one for one in self._subnets.values() if wanted is None or one.subnet_id in wanted]
        return {
            "Subnets": [
                {
                    "SubnetId": one.subnet_id,
                    "VpcId": "vpc-1",
                    "AvailabilityZone": "us-west-2a",
                    "CidrBlock": str(one.cidr),
                    "AvailableIpAddressCount": one.free_count,
                }
                for one in found
            ]
        }

    def _DescribeInstances(self, _params: Mapping[str, Any], _: int) -> None:
        return None

    def _DescribeInstanceTypes(self, _params: Mapping[str, Any], _: int) -> None:
        return None  # the adapter falls back to its table

    def _new_eni(self, subnet: int) -> ModelEni:
        self._count += 1
        eni = ModelEni(self._count, subnet, self.subnet(subnet).take(1)[0])
        self.enis[eni.eni_id] = eni
        return eni

    def _eni(self, params: Mapping[str, Any]) -> ModelEni:
        eni_id = params["NetworkInterfaceId"]
        if eni_id not in self.enis:
            raise Refused("InvalidNetworkInterfaceID.NotFound", f"The networkInterface ID '{eni_id}' does not exist")
        return self.enis[eni_id]

    def _fill(self, eni: ModelEni, count: int, block_count: int) -> tuple[list[int], list[int]]:
        subnet = self.subnet(eni.subnet)
        blocks = subnet.take_blocks(block_count)
        addresses = subnet.take(count)
        eni.addresses.update(addresses)
        eni.prefixes.update(blocks)
        self._hold(count + 16 * block_count)
        return addresses, blocks

    def _empty(self, eni: ModelEni, addresses: set[int], blocks: set[int]) -> None:
        subnet = self.subnet(eni.subnet)
        eni.addresses -= addresses
        eni.prefixes -= blocks
        subnet.singles.extend(sorted(addresses))
        subnet.blocks.extend(sorted(blocks))
        self._hold(-len(addresses) - 16 * len(blocks))

    def _hold(self, change: int) -> None:
        self._held_s += self._held_count * (self.world.now_s - self._held_since_s)
        self._held_since_s = self.world.now_s
        self._held_count += change

    def _described(self, eni: ModelEni) -> dict[str, Any]:
        primary = str(IPv4Address(eni.primary))
        is_attached = eni.instance >= 0 and self.world.now_s >= eni.attached_s
        entry: dict[str, Any] = {
            "NetworkInterfaceId": eni.eni_id,
            "MacAddress": eni.mac,
            "SubnetId": self.subnet(eni.subnet).subnet_id,
            "PrivateIpAddress": primary,
            "PrivateIpAddresses": [
                {"PrivateIpAddress": primary, "Primary": True},
                *({"PrivateIpAddress": str(IPv4Address(one)), "Primary": False} for one in eni.addresses),
            ],
            "Ipv4Prefixes": [{"Ipv4Prefix": f"{IPv4Address(one)}/28"} for one in eni.prefixes],
            "Status": "in-use" if eni.instance >= 0 else "available",
            "Description": eni.description,
            "TagSet": eni.tags,
            "Groups": [{"GroupId": "sg-1"}],
        }
        if eni.instance >= 0:
            entry["Attachment"] = {
                "AttachmentId": f"attach-{eni.eni_id}",
                "Status": "attached" if is_attached else "attaching",
                "InstanceId": f"i-{eni.instance:017x}",
                "DeviceIndex": eni.device,
                "NetworkCardIndex": 0,
                "DeleteOnTermination": eni.ends_with_instance,
            }
        return entry
