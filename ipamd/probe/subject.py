"""Hold the state of a run: the node, the probe's own ENIs, and the findings so far.

Guards I2 for a probe: every call that changes an ENI goes through `change`, which accepts only ENIs in `owned_ids`. These are ENIs
that this run created: EC2's answer to a Create or a Describe showed them with the tag of this run. The ENI of a former run is added
only while `cleanup.py` deletes it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from ipamd.model.cloud import InstanceIdentity
from ipamd.model.errors import CloudError
from ipamd.model.family import IPV4
from ipamd.model.record import dataclass, field
from ipamd.probe.calls import CallAnswer, Calls

RUN_TAG = "vpc-ipamd/probe"
"""Tag of the probe's ENIs. Its value is the ID of the run."""

NODE_TAG = "vpc-ipamd/probe-node"
"""Tag of the probe's ENIs. Its value is the instance ID, so that a later run on the same node finds the ENIs of a former run."""

DESCRIBE_WAITS_S = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
"""Waits in seconds before each Describe while a change is awaited. Ours: 31 s in seven calls. A change counts as seen when two
successive answers show it, in some steps one (`enough` of `until_seen`). If EC2 shows it later, the report says that it was not seen
twice in a row."""

METADATA_WAITS_S = (0.0, *(1.0,) * 10, *(5.0,) * 10)
"""Waits in seconds before each read of metadata while a change is awaited: 60 s in 21 reads. Ours: the reads must be few, because
metadata is throttled per instance."""

LONGEST_S = 60.0
"""How many seconds the daemon waits for an attach or a detach. Source: `ipamd/cloud/retries.py`, ATTACHING and SETTLING."""

SLEEP_SLICE_S = 0.5
"""Longest sleep in seconds between two checks for a request to stop."""


class NotPossible(Exception):
    """Raised by a step that cannot be taken, for example because an earlier step created no ENI. The checks of the step are
    reported as unknown.
    """


class ProbeResult(NamedTuple):
    """The outcome of one check.

    `verdict`: holds, does not hold, or unknown.
    `observed`: the observation in words, or the reason why there is none.
    `calls`: the numbers of the calls whose answers decided it.
    """

    verdict: str
    observed: str
    calls: list[int]


class Observation(NamedTuple):
    """The observation of a step for one check. `ProbeSubject.observe` explains the fields."""

    evidence: CallAnswer | Lag | bool | None
    observed: str
    answers: tuple[CallAnswer, ...]


class Permission(NamedTuple):
    """EC2's answer about one action. `verdict`: allowed, denied or not told. `reply`: the answer in words."""

    action: str
    verdict: str
    reply: str


class LeftOver(NamedTuple):
    """An ENI that is left or may be left.

    `subject`: its ID, or words if the ID is not known.
    `reason`: why it was not deleted.
    `commands`: shell commands that delete it, or find it if its ID is not known.
    """

    subject: str
    reason: str
    commands: list[str]


@dataclass(slots=True)
class OwnEni:
    """An ENI that this run created.

    `addresses`: its addresses, the primary one included, according to EC2's answers to Create, Assign and Unassign.
    `created_s`: monotonic time of the answer to Create.
    `attachment_id`: empty while the ENI is not attached.
    """

    eni_id: str
    mac: str
    addresses: frozenset[str]
    created_s: float
    attachment_id: str = ""


@dataclass(slots=True)
class ProbeSubject:
    """The inputs of a run, the observations of its steps, and the findings. Used by one thread.

    links: reads the MACs of the node's links. Raises: OSError.
    read_metadata: reads a path of instance metadata; None: 404.
    tags: tags of every ENI besides RUN_TAG and NODE_TAG.
    say: prints progress for people.
    is_real: whether to create an ENI; otherwise only dry runs are made.
    at: when the run began.
    device_index: where the ENI is attached.
    address_limit: addresses that one ENI can have.
    attachment_limit_type: EC2's AttachmentLimitType of the instance type (whether volumes and ENIs share one limit); empty if unknown.
    left_over: ENIs that are left or may be left.
    ended: why the run ended early; empty if it did not.
    owned_ids: IDs of the ENIs that this run may change.
    deleted_ids: IDs of the ENIs that were deleted.
    unsettled: parameters of Creates that may have made an ENI which no answer named.
    current: the ENI under test.
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
    observations: dict[str, Observation] = field(default_factory=dict)
    findings: dict[str, ProbeResult] = field(default_factory=dict)
    left_over: list[LeftOver] = field(default_factory=list)
    ended: str = ""
    owned_ids: set[str] = field(default_factory=set)
    deleted_ids: set[str] = field(default_factory=set)
    unsettled: list[dict[str, Any]] = field(default_factory=list)
    current: OwnEni | None = None

    def observe(self, name: str, evidence: CallAnswer | Lag | bool | None, observed: str = "", *answers: CallAnswer) -> None:
        """Record an observation for a check; the check's `expect` judges it afterwards.

        Args:
            evidence: the argument of `expect`; None if the step could not find out.
            observed: the observation in words; by default the text of `evidence`.
            answers: EC2's answers that the observation comes from; by default those in `evidence`.
        """
        if isinstance(evidence, CallAnswer):
            answers = answers or (evidence,)
        elif isinstance(evidence, Lag):
            answers = answers or tuple(evidence.answers)
        self.observations[name] = Observation(evidence, observed or str(evidence), answers)

    def eni(self) -> OwnEni:
        """The ENI under test. Raises: NotPossible if there is none."""
        if self.current is None:
            raise NotPossible("the probe has no ENI")
        return self.current

    def attached(self) -> OwnEni:
        """The ENI under test. Raises: NotPossible if there is none, or if it is not attached."""
        eni = self.eni()
        if not eni.attachment_id:
            raise NotPossible(f"{eni.eni_id} is not attached")
        return eni

    def create_params(self, *, suffix: str = "") -> dict[str, Any]:
        """Make parameters of CreateNetworkInterface: one secondary address, and the subnet and security groups of the primary ENI.

        `suffix`: end of the client token. All requests of a run with the same suffix have the same token.
        """
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

    def create(self, params: dict[str, Any], about: str) -> CallAnswer:
        """Create an ENI and record it as owned.

        If the answer is neither a refusal nor names an ENI, the parameters stay in `unsettled`, and the clean-up sends them again.
        """
        self.unsettled.append(params)
        answer = self.calls.ask("CreateNetworkInterface", about, **params)
        is_named = any(eni.get("NetworkInterfaceId") for eni in answer.enis())
        if is_named or not (answer.ok or answer.is_lost):
            self.unsettled.remove(params)
        for eni in answer.enis():
            self.record_owned(eni)
        return answer

    def record_owned(self, eni: Mapping[str, Any]) -> bool:
        """Record an ENI as owned if it has the tag of this run. Returns: whether it has."""
        is_ours = tags_of(eni).get(RUN_TAG) == self.run_id
        if is_ours:
            self.owned_ids.add(eni["NetworkInterfaceId"])
        return is_ours

    def change(self, api: str, eni_id: str, about: str = "", **params: Any) -> CallAnswer:
        """Make a changing call about an ENI of this run. Raises: NotPossible for any other ENI, before the call."""
        if eni_id not in self.owned_ids:
            raise NotPossible(f"{eni_id} was not created by this run")
        if api != "DetachNetworkInterface":
            params["NetworkInterfaceId"] = eni_id
        return self.calls.ask(api, about or eni_id, **params)

    def delete(self, eni_id: str, about: str = "") -> CallAnswer:
        """Delete an ENI of this run. Raises: as `change`."""
        answer = self.change("DeleteNetworkInterface", eni_id, about)
        if answer.ok:
            self.deleted_ids.add(eni_id)
        return answer

    def describe(self, eni_id: str) -> CallAnswer:
        """Describe one ENI by its ID."""
        return self.calls.ask("DescribeNetworkInterfaces", eni_id, NetworkInterfaceIds=[eni_id])

    def pause(self, seconds: float, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Sleep in slices of SLEEP_SLICE_S. `meanwhile`: called before each slice; it makes no EC2 call. Raises: Ended."""
        while seconds > 0:
            self.calls.check_stop()
            meanwhile()
            self.calls.sleep(min(seconds, SLEEP_SLICE_S))
            seconds -= SLEEP_SLICE_S

    def macs(self) -> frozenset[str] | None:
        """MACs of the node's links. None if they cannot be read, or if the primary ENI's MAC is missing: this process is then in
        another network namespace than the node's."""
        try:
            macs = self.links()
        except OSError:
            return None
        if self.identity.primary_mac not in macs:
            return None
        return macs

    def listed(self, leaf: str = IPV4.addresses_leaf) -> frozenset[str] | None:
        """Read the entries that metadata lists for the ENI under test. Returns: None if metadata lacks the ENI or does not answer.

        `leaf`: the last part of the path of instance metadata; by default that of the ENI's addresses.
        """
        path = f"meta-data/network/interfaces/macs/{self.eni().mac}/"
        try:
            addresses = self.read_metadata(f"{path}{leaf}")
            is_listed = bool(addresses) or self.read_metadata(f"{path}interface-id") is not None
        except CloudError:
            return None
        if not is_listed:
            return None
        return frozenset((addresses or "").split())

    def await_listed(self, wanted: frozenset[str], read: Callable[[], frozenset[str] | None]) -> float | None:
        """Wait until the result of `read` has all wanted entries. Returns: the monotonic time; None if that takes over 60 s."""
        for wait_s in METADATA_WAITS_S:
            self.pause(wait_s)
            if wanted <= (read() or frozenset()):
                return self.calls.clock.monotonic()
        return None


def tags_of(eni: Mapping[str, Any]) -> dict[str, str]:
    """Tags of a described ENI."""
    return {tag["Key"]: tag.get("Value", "") for tag in eni.get("TagSet") or ()}


def addresses_of(eni: Mapping[str, Any]) -> frozenset[str]:
    """Single addresses of a described ENI, its primary address included."""
    return frozenset(address["PrivateIpAddress"] for address in eni.get("PrivateIpAddresses") or ())


@dataclass(slots=True)
class Lag:
    """How a change became visible in answers of EC2.

    `seen_s`: seconds from the change to the first of the successive answers that showed it; None if too few successive
        answers showed it.
    `answers`: all answers.
    `visible`: for each answer, whether it showed the change.
    """

    seen_s: float | None = None
    answers: list[CallAnswer] = field(default_factory=list)
    visible: list[bool] = field(default_factory=list)

    @property
    def is_prompt(self) -> bool:
        """Whether every answer showed the change."""
        return self.seen_s is not None and all(self.visible)

    def __str__(self) -> str:
        if self.seen_s is None:
            return f"not seen twice in a row in {len(self.answers)} looks"
        if self.is_prompt:
            return f"seen in every look, the first {self.seen_s:.1f} s after the change"
        relapse_count = sum(before and not now for before, now in pairwise(self.visible))
        text = f"seen after {self.seen_s:.1f} s and {self.visible.count(False) - relapse_count} looks without it"
        if relapse_count:
            text += f", after {relapse_count} looks that showed it and then did not"
        return text


def until_seen(
    subject: ProbeSubject,
    shows: Callable[[CallAnswer], bool],
    *,
    since_s: float,
    ask: Callable[[], CallAnswer] | None = None,
    enough: int = 2,
    meanwhile: Callable[[], None] = lambda: None,
) -> Lag:
    """Ask EC2 until `enough` successive answers show a change, or DESCRIBE_WAITS_S are over.

    Args:
        shows: returns whether an answer shows the change.
        since_s: monotonic time of the change.
        ask: makes the call; by default a Describe of the ENI under test.
        meanwhile: called in every slice of a pause and before each call; it makes no EC2 call.
    """
    if ask is None:
        ask = partial(subject.describe, subject.eni().eni_id)
    lag = Lag()
    for wait_s in DESCRIBE_WAITS_S:
        subject.pause(wait_s, meanwhile)
        meanwhile()
        answer = ask()
        lag.answers.append(answer)
        lag.visible.append(shows(answer))
        if lag.visible[-enough:] == [True] * enough:
            lag.seen_s = lag.answers[-enough].answered_s - since_s
            break
    return lag
