"""For each check of the probe, how EC2, metadata or the node would have to answer for the assumption to be false.

The lab is made to give the answer by a hook around the raw call, because EC2's true behaviour is unknown or differs by account.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError

from tests.lab.cloud_adapter.probing import Around, ProbeOnLab, Send

DESCRIBE = "DescribeNetworkInterfaces"
CREATE = "CreateNetworkInterface"
ATTACH = "AttachNetworkInterface"
DETACH = "DetachNetworkInterface"
DELETE = "DeleteNetworkInterface"
ASSIGN = "AssignPrivateIpAddresses"
UNASSIGN = "UnassignPrivateIpAddresses"
ASSIGN_SIX = "AssignIpv6Addresses"
MODIFY = "ModifyNetworkInterfaceAttribute"


def refusal(code: str, message: str = "as a test wants it", *, status: int = 400) -> ClientError:
    """EC2's error answer."""
    return ClientError({"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}, "Test")


def is_dry(params: Mapping[str, Any]) -> bool:
    """Whether the call is a dry run."""
    return bool(params.get("DryRun"))


@dataclass(frozen=True)
class FalseAnswer:
    """The check that must say "does not hold", and how the answer comes about. `says`: a part of what is observed."""

    check: str
    says: str
    around: Around | None = None
    faults: Mapping[str, object] | None = None
    attach_delay_s: float = 2.0
    detach_delay_s: float = 2.0
    links: Callable[[ProbeOnLab], frozenset[str]] | None = None
    metadata: Callable[[ProbeOnLab, str], str | None] | None = None


def nth(api: str, number: int, instead: Callable[[ProbeOnLab, Send, dict[str, Any]], Mapping[str, Any]]) -> Around:
    """Do `instead` of the `number`-th call of an API that is no dry run."""
    seen = [0]

    def around(probe: ProbeOnLab, send: Send, name: str, params: dict[str, Any]) -> Mapping[str, Any]:
        if name == api and not is_dry(params):
            seen[0] += 1
            if seen[0] == number:
                return instead(probe, send, params)
        return send(name, params)

    return around


def refused(code: str) -> Callable[[ProbeOnLab, Send, dict[str, Any]], Mapping[str, Any]]:
    """Refuse with a code, without effect."""

    def instead(_probe: ProbeOnLab, _send: Send, _params: dict[str, Any]) -> Mapping[str, Any]:
        raise refusal(code)

    return instead


def accepted(_probe: ProbeOnLab, _send: Send, _params: dict[str, Any]) -> Mapping[str, Any]:
    """Accept, without effect."""
    return {}


def with_another_token(_probe: ProbeOnLab, send: Send, params: dict[str, Any]) -> Mapping[str, Any]:
    """Create a second ENI, as EC2 would if it did not know the token."""
    return send(CREATE, {**params, "ClientToken": params["ClientToken"] + "-other"})


def edited(api: str, edit: Callable[[dict[str, Any]], object]) -> Callable[[ProbeOnLab, Send, dict[str, Any]], Mapping[str, Any]]:
    """Change an answer after the call took effect."""

    def instead(_probe: ProbeOnLab, send: Send, params: dict[str, Any]) -> Mapping[str, Any]:
        answer = dict(send(api, params))
        edit(answer)
        return answer

    return instead


def without_tags(answer: dict[str, Any]) -> None:
    """An answer to Create that names neither tags nor secondary addresses."""
    answer["NetworkInterface"] = {**answer["NetworkInterface"], "TagSet": [], "PrivateIpAddresses": []}


def fewer_enis(answer: dict[str, Any]) -> None:
    """Numbers that no table has."""
    network = answer["InstanceTypes"][0]["NetworkInfo"]
    network["NetworkCards"][0]["MaximumNetworkInterfaces"] = network["MaximumNetworkInterfaces"] = 2


def one_more_address(answer: dict[str, Any]) -> None:
    """An answer to Assign that names addresses that were there before."""
    answer["AssignedPrivateIpAddresses"] = [*answer["AssignedPrivateIpAddresses"], {"PrivateIpAddress": "10.0.0.251"}]


def unaligned(answer: dict[str, Any]) -> None:
    """A prefix that does not begin at a multiple of 16."""
    for item in answer["AssignedIpv4Prefixes"]:
        item["Ipv4Prefix"] = item["Ipv4Prefix"].rpartition(".")[0] + ".9/28"


def longer(answer: dict[str, Any]) -> None:
    """A prefix of IPv6 that is no /80."""
    answer["AssignedIpv6Prefixes"] = [one.replace("/80", "/96") for one in answer["AssignedIpv6Prefixes"]]


def by_filter(name: str) -> Around:
    """Give an empty list at the first search by a filter that would find the probe's ENI."""
    seen = [0]

    def around(_probe: ProbeOnLab, send: Send, api: str, params: dict[str, Any]) -> Mapping[str, Any]:
        answer = dict(send(api, params))
        is_search = any(name in entry["Name"] for entry in params.get("Filters", ()))
        ours = [eni for eni in answer.get("NetworkInterfaces", ()) if eni.get("Description", "").startswith("vpc-ipamd probe")]
        if is_search and ours and not seen[0]:
            seen[0] = 1
            answer["NetworkInterfaces"] = [eni for eni in answer["NetworkInterfaces"] if eni not in ours]
        return answer

    return around


def attached_look(edit: Callable[[dict[str, Any]], object], *, times: int) -> Around:
    """Change the first looks that show the ENI by its ID as attached or attaching."""
    seen = [0]

    def around(_probe: ProbeOnLab, send: Send, api: str, params: dict[str, Any]) -> Mapping[str, Any]:
        answer = dict(send(api, params))
        enis = [eni for eni in answer.get("NetworkInterfaces", ()) if eni.get("Attachment")] if api == DESCRIBE else []
        if len(params.get("NetworkInterfaceIds", ())) == 1 and enis and seen[0] < times:
            seen[0] += 1
            edit(enis[0])
        return answer

    return around


def refuse_unpaged(_probe: ProbeOnLab, send: Send, api: str, params: dict[str, Any]) -> Mapping[str, Any]:
    """Refuse a list by filter without a page size."""
    if api == DESCRIBE and "Filters" in params and "MaxResults" not in params:
        raise refusal("OperationNotPermitted", "use MaxResults")
    return send(api, params)


def partial_list(_probe: ProbeOnLab, send: Send, api: str, params: dict[str, Any]) -> Mapping[str, Any]:
    """Answer a list of IDs with those that exist."""
    ids = [one for one in params.get("NetworkInterfaceIds", ()) if not one.endswith("000000000")]
    return send(api, {**params, "NetworkInterfaceIds": ids} if ids else params)


def late_link(probe: ProbeOnLab) -> frozenset[str]:
    """Links that appear ten seconds after they were plugged in; the primary one was there long before."""
    now, present = probe.bench.clock.monotonic(), probe.plugged_links()
    if not probe.first_seen:
        probe.first_seen.update(dict.fromkeys(present, 0.0))
    return frozenset(mac for mac in present if now - probe.first_seen.setdefault(mac, now) >= 10.0)


def lasting_link(probe: ProbeOnLab) -> frozenset[str]:
    """Links that are still there ten seconds after they were pulled."""
    now = probe.bench.clock.monotonic()
    probe.last_seen.update(dict.fromkeys(probe.plugged_links(), now))
    return frozenset(mac for mac, seen in probe.last_seen.items() if now - seen < 10.0)


def torn_metadata(probe: ProbeOnLab, path: str) -> str | None:
    """Metadata that lists a new ENI before its addresses."""
    text = probe.bench.imds.read(path)
    if path.endswith("local-ipv4s") and text is not None:
        first = probe.first_seen.setdefault(path, probe.bench.clock.monotonic())
        return text if probe.bench.clock.monotonic() - first > 3.0 else None
    return text


def stuck_metadata(probe: ProbeOnLab, path: str) -> str | None:
    """Metadata that keeps what it said first of an ENI."""
    text = probe.bench.imds.read(path)
    return probe.frozen.setdefault(path, text) if text is not None else None


def without_prefixes_of_ipv6(probe: ProbeOnLab, path: str) -> str | None:
    """Metadata that never lists them."""
    return None if path.endswith("ipv6-prefix") else probe.bench.imds.read(path)


FALSE_ANSWERS = (
    FalseAnswer("limits-table", "EC2: 2 ENIs", nth("DescribeInstanceTypes", 1, edited("DescribeInstanceTypes", fewer_enis))),
    FalseAnswer("create-answer", "0 tags", nth(CREATE, 1, edited(CREATE, without_tags))),
    FalseAnswer("attach-after-create", "NotFound", nth(ATTACH, 1, refused("InvalidNetworkInterfaceID.NotFound"))),
    FalseAnswer("create-visible", "1 looks without it", faults={"apis": {DESCRIBE: {"lag_s": 0.7}}}),
    FalseAnswer("attach-time", "not seen twice", attach_delay_s=45.0),
    FalseAnswer("link-before-attached", "no link in any look, attached after", links=late_link),
    FalseAnswer(
        "attached-addresses", "0 of 2",
        attached_look(lambda eni: eni.update(PrivateIpAddresses=[]), times=1), attach_delay_s=0.0,
    ),
    FalseAnswer("metadata-complete", "with 0 addresses, complete after", metadata=torn_metadata),
    FalseAnswer(
        "terminate-default", "true", attached_look(lambda eni: eni["Attachment"].update(DeleteOnTermination=True), times=1)
    ),
    FalseAnswer("terminate-set", "IncorrectState", nth(MODIFY, 1, refused("IncorrectState"))),
    FalseAnswer("tag-search", "1 looks without it", by_filter("vpc-ipamd/probe")),
    FalseAnswer("list-by-instance", "1 looks without it", by_filter("attachment.instance-id")),
    FalseAnswer("list-unpaged", "OperationNotPermitted", refuse_unpaged),
    FalseAnswer("list-missing-id", "accepted, 1 ENIs", partial_list),
    FalseAnswer("token-replay", "eni-", nth(CREATE, 2, with_another_token)),
    FalseAnswer("token-mismatch", "eni-", nth(CREATE, 3, with_another_token)),
    FalseAnswer("attach-again", "accepted", nth(ATTACH, 2, accepted)),
    FalseAnswer("delete-in-use", "accepted", nth(DELETE, 1, accepted)),
    FalseAnswer("assign-answer", "2 new and 0 old", nth(ASSIGN, 1, edited(ASSIGN, one_more_address))),
    FalseAnswer("assign-visible", "1 looks without it", faults={"apis": {DESCRIBE: {"lag_s": 0.7}}}),
    FalseAnswer("assign-metadata", "not seen within 60 s", metadata=stuck_metadata),
    FalseAnswer("assign-over-limit", "InvalidParameterValue", nth(ASSIGN, 2, refused("InvalidParameterValue"))),
    FalseAnswer("unassign-visible", "1 looks without it", faults={"apis": {DESCRIBE: {"lag_s": 0.7}}}),
    FalseAnswer("unassign-again", "accepted", nth(UNASSIGN, 2, accepted)),
    FalseAnswer("prefix-answer", ".9/28", nth(ASSIGN, 3, edited(ASSIGN, unaligned))),
    FalseAnswer("ipv6-prefix-answer", "::/96", nth(ASSIGN_SIX, 1, edited(ASSIGN_SIX, longer))),
    FalseAnswer("ipv6-prefix-visible", "1 looks without it", faults={"apis": {DESCRIBE: {"lag_s": 0.7}}}),
    FalseAnswer("ipv6-prefix-metadata", "not seen within 60 s", metadata=without_prefixes_of_ipv6),
    FalseAnswer("detach-again", "OperationNotPermitted", nth(DETACH, 2, refused("OperationNotPermitted"))),
    FalseAnswer("delete-detaching", "OperationNotPermitted", nth(DELETE, 2, refused("OperationNotPermitted"))),
    FalseAnswer("detach-time", "not seen twice", detach_delay_s=45.0),
    FalseAnswer("link-gone", "link there in every look", links=lasting_link),
    FalseAnswer("delete-visible", "1 looks without it", faults={"apis": {DESCRIBE: {"lag_s": 0.7}}}),
    FalseAnswer("delete-again", "accepted", nth(DELETE, 4, accepted)),
    FalseAnswer("token-after-delete", "a new ENI", nth(CREATE, 4, with_another_token)),
)  # fmt: skip
