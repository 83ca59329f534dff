"""What the checks work on: the node, the probe's own ENIs, and what was found so far.

Guards I2 for a probe: every changing call goes through `owned`, which knows only ENIs that this run created, by the answer to its
own Create or by its own tag in a Describe.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from datetime import datetime
from itertools import pairwise
from typing import Any, NamedTuple

from ipamd.model.cloud import InstanceIdentity
from ipamd.model.errors import CloudError
from ipamd.model.family import IPV4
from ipamd.model.record import dataclass, field
from ipamd.probe.calls import Answer, Calls

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


class Finding(NamedTuple):
    """The outcome of one check; `calls` are numbers of answers."""

    verdict: str
    observed: str
    calls: list[int]


class Permission(NamedTuple):
    """What EC2 told about one action. `verdict`: allowed, denied or not told."""

    action: str
    verdict: str
    told: str


class LeftOver(NamedTuple):
    """Something that is still there. `commands`: what deletes it."""

    subject: str
    why: str
    commands: list[str]


@dataclass(slots=True)
class OwnEni:
    """An ENI that this run created. `addresses`: all that EC2 confirmed to be on it."""

    eni_id: str
    mac: str
    addresses: frozenset[str]
    created_s: float
    attachment_id: str = ""


@dataclass(slots=True)
class Subject:
    """Everything that a run works with, and what it found. One thread.

    links: MACs of the node's links. read_metadata: a path of instance metadata (None: 404). tags: what every ENI carries besides the
    probe's own tags. say: takes progress for people. is_real: whether to create an ENI; otherwise only dry runs are made. at: when it
    began. device_index:
    where the ENI goes. address_limit: of one ENI. ended: why the run ended early; empty if it did not.
    """

    calls: Calls
    links: Callable[[], frozenset[str]]
    read_metadata: Callable[[str], str | None]
    identity: InstanceIdentity
    tags: Mapping[str, str]
    say: Callable[[str], None]
    is_real: bool
    at: datetime
    run_id: str = field(default_factory=lambda: f"probe-{uuid.uuid4().hex[:12]}")
    device_index: int = -1
    address_limit: int = 0
    attachment_limit_type: str = ""
    permissions: list[Permission] = field(default_factory=list)
    findings: dict[str, Finding] = field(default_factory=dict)
    left_over: list[LeftOver] = field(default_factory=list)
    ended: str = ""
    owned_ids: set[str] = field(default_factory=set)
    deleted_ids: set[str] = field(default_factory=set)
    unsettled: list[dict[str, Any]] = field(default_factory=list)
    current: OwnEni | None = None

    def find(self, name: str, holds: bool | None, observed: str, *answers: Answer) -> None:
        """Record the outcome of a check; None: unknown."""
        verdict = "unknown" if holds is None else "holds" if holds else "does not hold"
        self.findings[name] = Finding(verdict, observed, [answer.number for answer in answers])

    def find_prompt(self, name: str, lag: Lag) -> None:
        """Record whether a change was visible at once."""
        self.find(name, lag.is_prompt, str(lag), *lag.answers)

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

    def create_params(self, *, suffix: str = "") -> dict[str, Any]:
        """Parameters of CreateNetworkInterface: the run's token, one secondary address, the primary ENI's subnet and groups."""
        identity = self.identity
        tags = {**self.tags, RUN_TAG: self.run_id, NODE_TAG: str(identity.instance_id)}
        return {
            "SubnetId": str(identity.subnet_id),
            "Description": f"vpc-ipamd {self.run_id}",
            "ClientToken": f"vpc-ipamd-{self.run_id}{suffix}",
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

    def change(self, api: str, eni_id: str, about: str = "", **params: Any) -> Answer:
        """Make a changing call about an ENI of this run. Raises: NotPossible for any other ENI, before the call."""
        if eni_id not in self.owned_ids:
            raise NotPossible(f"{eni_id} was not created by this run")
        named = {"NetworkInterfaceId": eni_id} if api != "DetachNetworkInterface" else {}
        return self.calls.ask(api, about or eni_id, **named, **params)

    def delete(self, eni_id: str, about: str = "") -> Answer:
        """Delete an ENI of this run. Raises: as `change`."""
        answer = self.change("DeleteNetworkInterface", eni_id, about)
        if answer.ok:
            self.deleted_ids.add(eni_id)
        return answer

    def describe(self, eni_id: str) -> Answer:
        """Describe one ENI by its ID."""
        return self.calls.ask("DescribeNetworkInterfaces", eni_id, NetworkInterfaceIds=[eni_id])

    def pause(self, seconds: float, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Sleep in slices; `meanwhile` is called before each, and costs no EC2 call. Raises: Ended."""
        while seconds > 0:
            self.calls.check_stop()
            meanwhile()
            self.calls.sleep(min(seconds, SLEEP_SLICE_S))
            seconds -= SLEEP_SLICE_S

    def macs(self) -> frozenset[str] | None:
        """MACs of the node's links; None if they cannot be read, or are not visible from here: the primary one would be."""
        try:
            found = self.links()
        except OSError:
            return None
        return found if self.identity.primary_mac in found else None

    def listed(self, leaf: str = IPV4.addresses_leaf) -> frozenset[str] | None:
        """What metadata lists on the ENI under test, by default addresses; None if it lists no such ENI, or does not answer."""
        path = f"meta-data/network/interfaces/macs/{self.eni().mac}/"
        try:
            addresses = self.read_metadata(f"{path}{leaf}")
            is_listed = bool(addresses) or self.read_metadata(f"{path}interface-id") is not None
        except CloudError:
            return None
        return frozenset((addresses or "").split()) if is_listed else None

    def await_listed(self, wanted: frozenset[str], look: Callable[[], frozenset[str] | None]) -> float | None:
        """Wait until metadata lists some addresses. Returns: when, monotonic; None if not within 60 s."""
        for wait_s in METADATA_WAITS_S:
            self.pause(wait_s)
            if wanted <= (look() or frozenset()):
                return self.calls.clock.monotonic()
        return None


def tags_of(entry: Mapping[str, Any]) -> dict[str, str]:
    """Tags of a described ENI."""
    return {tag["Key"]: tag.get("Value", "") for tag in entry.get("TagSet") or ()}


def addresses_of(entry: Mapping[str, Any]) -> frozenset[str]:
    """Single addresses of a described ENI, the primary one included."""
    return frozenset(item["PrivateIpAddress"] for item in entry.get("PrivateIpAddresses") or ())


@dataclass(slots=True)
class Lag:
    """How a change became visible. `seen_s`: seconds from the change to the first look of enough in a row that show it."""

    seen_s: float | None = None
    answers: list[Answer] = field(default_factory=list)
    shown: list[bool] = field(default_factory=list)

    @property
    def is_prompt(self) -> bool:
        """Whether every look showed the change."""
        return self.seen_s is not None and all(self.shown)

    def __str__(self) -> str:
        if self.seen_s is None:
            return f"not seen twice in a row in {len(self.answers)} looks"
        if self.is_prompt:
            return f"seen in every look, the first {self.seen_s:.1f} s after the change"
        relapse_count = sum(before and not now for before, now in pairwise(self.shown))
        relapses = f", after {relapse_count} looks that showed it and then did not" if relapse_count else ""
        return f"seen after {self.seen_s:.1f} s and {self.shown.count(False) - relapse_count} looks without it{relapses}"


def until_seen(
    subject: Subject,
    shows: Callable[[Answer], bool],
    *,
    since_s: float,
    look: Callable[[], Answer] | None = None,
    enough: int = 2,
    meanwhile: Callable[[], None] = lambda: None,
) -> Lag:
    """Look until `enough` successive looks show a change, or LOOK_WAITS_S are over.

    Args:
        look: asks EC2; by default for the ENI under test.
        meanwhile: called in every slice of a pause and before each look; costs no EC2 call.
    """
    lag = Lag()
    for wait_s in LOOK_WAITS_S:
        subject.pause(wait_s, meanwhile)
        meanwhile()
        answer = look() if look is not None else subject.describe(subject.eni().eni_id)
        lag.answers.append(answer)
        lag.shown.append(shows(answer))
        if lag.shown[-enough:] == [True] * enough:
            lag.seen_s = lag.answers[-enough].answered_s - since_s
            break
    return lag
