"""EC2's answers: damaged XML, odd values, HTTP that is none, through botocore and our adapter. Only errors of our tree come out."""

from __future__ import annotations

import os
from ipaddress import IPv4Address, IPv4Network
from random import Random
from typing import Any

from fuzz import http_answers
from fuzz.log_sink import LogSink
from fuzz.mutation import mutated, noise
from fuzz.target import Case, Target, Violation
from ipamd.cloud.client import Ec2Client
from ipamd.cloud.ec2 import BotoEc2
from ipamd.model.cloud import DescribedEni, EniRequest
from ipamd.model.eni import InstanceLimits
from ipamd.model.errors import IpamError
from ipamd.model.ids import EniId, InstanceId, SubnetId
from ipamd.settings import CloudConfig
from tests.fakes.clock import FakeClock

NAMESPACE = 'xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"'
ENI = """<{tag}><networkInterfaceId>eni-1</networkInterfaceId><subnetId>subnet-1</subnetId><vpcId>vpc-1</vpcId>
<description>d</description><status>in-use</status><macAddress>02:00:00:00:00:01</macAddress>
<privateIpAddress>10.0.0.10</privateIpAddress><interfaceType>interface</interfaceType>
<groupSet><item><groupId>sg-1</groupId></item></groupSet>
<attachment><attachmentId>a-1</attachmentId><instanceId>i-1</instanceId><deviceIndex>1</deviceIndex>
<networkCardIndex>0</networkCardIndex><status>attached</status><deleteOnTermination>true</deleteOnTermination></attachment>
<tagSet><item><key>k</key><value>v</value></item></tagSet>
<privateIpAddressesSet><item><privateIpAddress>10.0.0.10</privateIpAddress><primary>true</primary></item>
<item><privateIpAddress>10.0.0.11</privateIpAddress><primary>false</primary></item></privateIpAddressesSet>
<ipv4PrefixSet><item><ipv4Prefix>10.0.1.0/28</ipv4Prefix></item></ipv4PrefixSet></{tag}>"""
SUBNET = """<subnetSet><item><subnetId>subnet-1</subnetId><vpcId>vpc-1</vpcId>
<availabilityZone>us-west-2a</availabilityZone><cidrBlock>10.0.0.0/20</cidrBlock>
<availableIpAddressCount>100</availableIpAddressCount></item></subnetSet>"""
TYPES = """<instanceTypeSet><item><instanceType>m5.large</instanceType><bareMetal>false</bareMetal><hypervisor>nitro</hypervisor>
<networkInfo><maximumNetworkInterfaces>3</maximumNetworkInterfaces><ipv4AddressesPerInterface>10</ipv4AddressesPerInterface>
<maximumNetworkCards>1</maximumNetworkCards><defaultNetworkCardIndex>0</defaultNetworkCardIndex><networkCards><item>
<networkCardIndex>0</networkCardIndex><maximumNetworkInterfaces>3</maximumNetworkInterfaces></item></networkCards>
</networkInfo></item></instanceTypeSet>"""
SET = "<networkInterfaceSet>" + ENI.format(tag="item") + "</networkInterfaceSet>"
REQUEST = EniRequest(SubnetId("subnet-1"), ("sg-1",), "d", {}, "token", address_count=1)
ENI_ID = EniId("eni-1")
ASSIGNED = """<networkInterfaceId>eni-1</networkInterfaceId><assignedPrivateIpAddressesSet><item>
<privateIpAddress>10.0.0.11</privateIpAddress></item></assignedPrivateIpAddressesSet><assignedIpv4PrefixSet><item>
<ipv4Prefix>10.0.1.0/28</ipv4Prefix></item></assignedIpv4PrefixSet>"""
PLACE = {"instance_id": InstanceId("i-1"), "device_index": 1, "network_card": 0}
# method: (arguments, API, what its answer has)
CALLS: dict[str, tuple[dict[str, Any], str, str]] = {
    "describe_enis": ({"instance_id": InstanceId("i-1")}, "DescribeNetworkInterfaces", SET),
    "find_by_token": ({"token": "t"}, "DescribeNetworkInterfaces", SET),
    "describe_eni": ({"eni_id": ENI_ID}, "DescribeNetworkInterfaces", SET),
    "subnet_cidr": ({"subnet_id": SubnetId("subnet-1")}, "DescribeSubnets", SUBNET),
    "subnet_free_count": ({"subnet_id": SubnetId("subnet-1")}, "DescribeSubnets", SUBNET),
    "instance_limits": ({"instance_type": "m5.large"}, "DescribeInstanceTypes", TYPES),
    "create_eni": ({"request": REQUEST}, "CreateNetworkInterface", ENI.format(tag="networkInterface")),
    "attach_eni": ({"eni_id": ENI_ID, **PLACE}, "AttachNetworkInterface", "<attachmentId>a-1</attachmentId>"),
    "assign_addresses": ({"eni_id": ENI_ID, "count": 1}, "AssignPrivateIpAddresses", ASSIGNED),
    "assign_prefixes": ({"eni_id": ENI_ID, "count": 1}, "AssignPrivateIpAddresses", ASSIGNED),
}
VALUES = (
    b"", b"-1", b"1e9", b"0x10", b"99999999999999999999999", b"NaN", b"true", b"10.0.0.300", b"::1", b"10.0.0.0/8", b"10.0.0.11/28",
    b"\xff", b"\x1b[1m", b"&#27;", b"&#0;", b"&lt;", b"&x;", b"<item/>", b"<![CDATA[x]]>", b"\xc3\xa4", b" 1 ", b"1_0", b"null",
)  # fmt: skip
CODES = (
    b"RequestLimitExceeded", b"InvalidParameterValue", b"X.NotFound", b"UnauthorizedOperation", b"InternalError", b"", b"\xc3\xa4",
    b"IncorrectState", b"InsufficientFreeAddressesInSubnet", b"x" * 5000, b"%s{}", b"{actions}", b"\x1b[1m",
)  # fmt: skip


class Ec2Answers(Target):
    """A case: `call` (a method of the port), `answers` (HTTP responses, one for each request; the last one repeats)."""

    memory_bytes = 64 << 20
    cpu_s = 5.0
    batch = 100

    def __init__(self) -> None:
        os.environ |= {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
        self._log = LogSink()
        self._server = http_answers.HttpAnswers()
        self._clock = FakeClock()
        self._ec2 = self._made()

    def generate(self, random: Random) -> Case:
        call = random.choice(list(CALLS))
        return {"call": call, "answers": [_answer(random, call) for _ in range(random.choice((1, 1, 2)))]}

    def run(self, case: Case) -> None:
        self._server.answers = list(case["answers"]) or [b""]
        self._clock.advance(3600.0)  # budgets are full again, and what was told before is asked again
        self._ec2._subnets.clear()
        self._ec2._limits.clear()
        try:
            _judge(getattr(self._ec2, case["call"])(**CALLS[case["call"]][0]))
        except IpamError as error:
            if not error.message:
                raise Violation("untold", f"an error without a message: {error!r}") from error
        self._log.judge()

    def check(self) -> None:
        self._server.answers = [http_answers.response(_body("subnet_free_count"))]
        if self._ec2.subnet_free_count(SubnetId("subnet-1")) != 100:
            raise Violation("unanswered", "a good answer is not read any more")

    def close(self) -> None:
        self._server.close()

    def _made(self) -> BotoEc2:
        config = CloudConfig(ec2_endpoint=self._server.url, imds_endpoint="http://127.0.0.1:9", http_timeout_s=5)
        client = Ec2Client(config, region=lambda: "us-west-2")  # in this process, whose memory and time are bounded
        return BotoEc2(config, region=str, clock=self._clock, sleep=self._clock.advance, client=client)


def _body(call: str) -> bytes:
    _, api, inner = CALLS[call]
    return f"<{api}Response {NAMESPACE}><requestId>r</requestId>{inner}</{api}Response>".encode()


def _answer(random: Random, call: str) -> bytes | list[tuple[bytes, int]]:
    kind = random.random()
    if kind < 0.15:
        return http_answers.any_response(random, _error(random), status=random.choice((400, 403, 500, 503)))
    if kind < 0.2:
        body = random.choice(
            (b"", b"<html><body>proxy</body></html>", b"{}", noise(random, 500), b"<a>" * 2000, b"<a " + b"b='c' " * 2000)
        )
    else:
        body = _altered(random, _body(call))
        body = mutated(random, body) if kind < 0.35 else body
    return http_answers.any_response(random, body, status=random.choice((200,) * 15 + (204, 301, 404, 500)))


def _altered(random: Random, body: bytes) -> bytes:
    """Change values between tags, leave elements out, or repeat them."""
    for _ in range(random.choice((0, 1, 1, 1, 2, 4))):
        parts = body.split(b"<")
        at = random.randrange(1, len(parts))
        name, _, text = parts[at].partition(b">")
        choice = random.random()
        if choice < 0.7:
            parts[at] = name + b">" + random.choice(VALUES)
        elif choice < 0.85:  # with its end, if it is a leaf: the rest stays XML
            del parts[at : at + 2 if at + 1 < len(parts) and parts[at + 1].startswith(b"/" + name + b">") else at + 1]
        else:
            parts[at : at + 1] = [parts[at], b"item>" + text, b"/item>"]
        body = b"<".join(parts)
    return body


def _error(random: Random) -> bytes:
    code, message = random.choice(CODES), random.choice((*CODES, b"m"))
    body = b"<Response><Errors><Error><Code>%s</Code><Message>%s</Message></Error></Errors><RequestID>r</RequestID></Response>"
    made = body % (code, message)
    return mutated(random, made) if random.random() < 0.3 else made


def _judge(found: object) -> None:
    """What was read has the types that it promises."""
    for eni in found if isinstance(found, tuple | frozenset) else (found,):
        if isinstance(eni, DescribedEni) and not eni.problem:
            texts = (eni.eni_id, eni.mac, eni.subnet_id, eni.status, eni.description, eni.instance_id, *eni.tags.values())
            numbers = (eni.device_index, eni.network_card)
            if not all(isinstance(text, str) for text in texts) or not all(isinstance(number, int) for number in numbers):
                raise Violation("wrong type", f"{eni!r:.400}")
            if eni.primary_address in eni.secondary_addresses:
                raise Violation("primary", f"I6: the primary address is among the others: {eni!r:.400}")
        elif isinstance(eni, InstanceLimits) and not (eni.eni_count > 0 and eni.ipv4_per_eni > 0):
            raise Violation("wrong limits", f"{eni!r}")
        elif not isinstance(eni, DescribedEni | InstanceLimits | IPv4Network | IPv4Address | int | str):
            raise Violation("wrong type", f"{eni!r:.400}")


def make() -> Target:
    """Make the target."""
    return Ec2Answers()
