"""What the checks work on: the node, the probe's own ENIs, and what was found so far.

Guards I2 for a probe: every changing call goes through `owned`, which knows only ENIs that this run created, by the answer to its
own Create or by its own tag in a Describe.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ipamd.model.cloud import InstanceIdentity
from ipamd.model.eni import InstanceLimits
from ipamd.model.errors import CloudError
from ipamd.ports import Clock
from ipamd.probe.calls import Answer, Calls
from ipamd.probe.checks import BY_NAME, Verdict

RUN_TAG = "vpc-ipamd/probe"
"""Its value is the ID of the run."""

NODE_TAG = "vpc-ipamd/probe-node"
"""Its value is the instance ID: a later run on the same node finds what a former one left behind."""

LOOK_WAITS_S = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
"""Before each look for a change. Ours: 31 s in seven calls; what lags longer is reported as such."""

METADATA_WAITS_S = (0.0, *(1.0,) * 10, *(5.0,) * 10)
"""Before each look at metadata for one change: 60 s in 21 looks. Ours: metadata is throttled per instance."""

LONGEST_S = 60.0
"""How long the daemon waits for an attach or a detach. Source: `ipamd/cloud/retries.py`, ATTACHING and SETTLING."""

SLEEP_SLICE_S = 0.5
"""Longest sleep without looking whether the probe is to stop."""


class NotPossible(Exception):
    """A step lacks what an earlier one should have made; its checks are reported as unknown."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check; `calls` are numbers of answers."""

    verdict: Verdict
    observed: str
    calls: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Sources:
    """Where else than at EC2 the ENI shows: MACs of the node's links, and a path of instance metadata (None: 404)."""

    links: Callable[[], frozenset[str]]
    metadata: Callable[[str], str | None]


@dataclass(frozen=True, slots=True)
class Node:
    """The node before the probe. `device_index`: where the probe's ENI goes. `table`: what the built-in table says of the type."""

    limits: InstanceLimits
    table: InstanceLimits | None
    device_index: int
    attachment_limit_type: str


@dataclass(slots=True)
class OwnEni:
    """An ENI that this run created. `addresses`: all that EC2 confirmed to be on it."""

    eni_id: str
    mac: str
    addresses: frozenset[str]
    created_s: float
    attachment_id: str = ""
    attach_asked_s: float = 0.0


@dataclass(slots=True)
class Subject:
    """Everything that a run knows. One thread. `while_waiting` is called in every slice of a pause, and costs no EC2 call."""

    calls: Calls
    sources: Sources
    identity: InstanceIdentity
    clock: Clock
    sleep: Callable[[float], None]
    tags: Mapping[str, str]
    run_id: str = field(default_factory=lambda: f"probe-{uuid.uuid4().hex[:12]}")
    findings: dict[str, Finding] = field(default_factory=dict)
    owned_ids: set[str] = field(default_factory=set)
    deleted_ids: set[str] = field(default_factory=set)
    unsettled: list[dict[str, Any]] = field(default_factory=list)
    current: OwnEni | None = None
    while_waiting: Callable[[], None] = lambda: None
    inspected: Node | None = None

    @property
    def node(self) -> Node:
        """The node, once it was inspected. Raises: NotPossible before."""
        if self.inspected is None:
            raise NotPossible("the node was not inspected")
        return self.inspected

    def find(self, name: str, verdict: Verdict | bool, observed: str, *answers: Answer) -> None:
        """Record the outcome of a check; True holds, False does not. Raises: KeyError for a check that nobody declared."""
        if name not in BY_NAME:
            raise KeyError(name)
        if isinstance(verdict, bool):
            verdict = Verdict.HOLDS if verdict else Verdict.DIFFERS
        self.findings[name] = Finding(verdict, observed, tuple(answer.number for answer in answers))

    def eni(self) -> OwnEni:
        """The ENI under test. Raises: NotPossible if there is none."""
        if self.current is None:
            raise NotPossible("the probe has no ENI")
        return self.current

    def attached(self) -> OwnEni:
        """The ENI under test, attached. Raises: NotPossible."""
        eni = self.eni()
        if not eni.attachment_id:
            raise NotPossible(f"{eni.eni_id} is not attached")
        return eni

    def create_params(self, token: str) -> dict[str, Any]:
        """Parameters of CreateNetworkInterface: one secondary address, the primary ENI's subnet and groups."""
        identity = self.identity
        tags = {**self.tags, RUN_TAG: self.run_id, NODE_TAG: str(identity.instance_id)}
        return {
            "SubnetId": str(identity.subnet_id),
            "Description": f"vpc-ipamd {self.run_id}",
            "ClientToken": token,
            "Groups": list(identity.security_group_ids),
            "SecondaryPrivateIpAddressCount": 1,
            "TagSpecifications": [
                {"ResourceType": "network-interface", "Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}
            ],
        }

    def create(self, params: dict[str, Any], about: str) -> Answer:
        """Create, and own what the answer names. Until EC2 refused or named an ENI, the request is kept for the clean-up to settle."""
        self.unsettled.append(params)
        answer = self.calls.ask("CreateNetworkInterface", about, **params)
        is_named = any(entry.get("NetworkInterfaceId") for entry in answer.enis())
        if is_named or not (answer.ok or answer.is_lost):
            self.unsettled.remove(params)
        for entry in answer.enis():
            self.own(entry)
        return answer

    def own(self, entry: Mapping[str, Any]) -> bool:
        """Own an ENI that carries the tag of this run. Returns: whether it does."""
        is_ours = tags_of(entry).get(RUN_TAG) == self.run_id
        if is_ours:
            self.owned_ids.add(entry["NetworkInterfaceId"])
        return is_ours

    def change(self, api: str, eni_id: str, about: str, **params: Any) -> Answer:
        """Make a changing call about an ENI of this run. Raises: NotPossible for any other ENI, before the call."""
        if eni_id not in self.owned_ids:
            raise NotPossible(f"{eni_id} was not created by this run")
        named = {"NetworkInterfaceId": eni_id} if api != "DetachNetworkInterface" else {}
        return self.calls.ask(api, about, **named, **params)

    def describe(self, eni_id: str) -> Answer:
        """Describe one ENI by its ID."""
        return self.calls.ask("DescribeNetworkInterfaces", eni_id, NetworkInterfaceIds=[eni_id])

    def pause(self, seconds: float) -> None:
        """Sleep in slices. Raises: Stopped."""
        while seconds > 0:
            self.calls.check_stop()
            self.while_waiting()
            self.sleep(min(seconds, SLEEP_SLICE_S))
            seconds -= SLEEP_SLICE_S

    def links(self) -> frozenset[str] | None:
        """MACs of the node's links; None if they cannot be read."""
        try:
            return self.sources.links()
        except OSError:
            return None

    def sees_links(self) -> bool:
        """Whether the node's links are visible from here: its primary one is."""
        return self.identity.primary_mac in (self.links() or ())

    def metadata(self, leaf: str) -> str | None:
        """Read a leaf of the ENI's metadata; None if it is absent or metadata did not answer."""
        try:
            return self.sources.metadata(f"meta-data/network/interfaces/macs/{self.eni().mac}/{leaf}")
        except CloudError:
            return None


def tags_of(entry: Mapping[str, Any]) -> dict[str, str]:
    """Tags of a described ENI."""
    return {tag["Key"]: tag.get("Value", "") for tag in entry.get("TagSet") or ()}


def addresses_of(entry: Mapping[str, Any]) -> frozenset[str]:
    """Single addresses of a described ENI, the primary one included."""
    return frozenset(item["PrivateIpAddress"] for item in entry.get("PrivateIpAddresses") or ())


@dataclass(slots=True)
class Lag:
    """How a change became visible. `seen_s`: seconds from the change to the first look of two in a row that show it."""

    seen_s: float | None = None
    miss_count: int = 0
    relapse_count: int = 0
    answers: list[Answer] = field(default_factory=list)

    @property
    def is_prompt(self) -> bool:
        """Whether every look showed the change."""
        return self.seen_s is not None and not self.miss_count and not self.relapse_count

    def __str__(self) -> str:
        if self.seen_s is None:
            return f"not seen twice in a row in {len(self.answers)} looks"
        if self.is_prompt:
            return f"seen in every look, the first {self.seen_s:.1f} s after the change"
        relapses = f", after {self.relapse_count} looks that showed it and then did not" if self.relapse_count else ""
        return f"seen after {self.seen_s:.1f} s and {self.miss_count} looks without it{relapses}"


def until_seen(
    subject: Subject, look: Callable[[], Answer], shows: Callable[[Answer], bool], *, since_s: float, enough: int = 2
) -> Lag:
    """Look until `enough` successive looks show a change, or LOOK_WAITS_S are over."""
    lag, row, first_s = Lag(), 0, 0.0
    for wait_s in LOOK_WAITS_S:
        subject.pause(wait_s)
        answer = look()
        lag.answers.append(answer)
        if shows(answer):
            first_s = answer.answered_s - since_s if row == 0 else first_s
            row += 1
            if row >= enough:
                lag.seen_s = first_s
                break
        else:
            lag.relapse_count += row > 0
            lag.miss_count += row == 0
            row = 0
    return lag


def verdict_of(lag: Lag) -> Verdict:
    """Whether a change was visible at once."""
    return Verdict.HOLDS if lag.is_prompt else Verdict.DIFFERS
