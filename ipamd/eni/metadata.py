"""Look at instance metadata in turns, a few requests each, and ask for a look at EC2 when it differs from the record.

A turn refreshes the node's identity (VPC CIDRs, security groups), asks for a spot instance's notices, lists the ENIs, and reads those
that were not read for longest, as many as the budget of requests allows: REQUESTS_PER_TURN, whatever the number of ENIs. Metadata is
throttled for the whole instance (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html), and other
programs on the node need it too.
Nothing is removed because of metadata (I7); a failed turn says nothing (I11).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address

from ipamd.core.context import ServiceContext
from ipamd.eni.book import EniBook, Reading
from ipamd.eni.resync import LookReason, ResyncScheduler
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.eni import EniState
from ipamd.model.errors import CloudError, log_text
from ipamd.model.ids import EniId, MacAddress
from ipamd.model.metadata_evidence import (
    AskedDifferences,
    Difference,
    Recent,
    RecordedContents,
    eni_differences,
    list_differences,
    recorded_contents,
    sentence,
)
from ipamd.ports import Metadata

REQUESTS_PER_TURN = 10
"""HTTP requests, the node's identity and tokens included. Ours: with a minute between turns as many in a minute; amazon-vpc-cni-k8s
makes some six for each ENI every minute (pkg/awsutils/awsutils.go, getENIMetadata)."""

FIRST_REQUESTS, LATER_REQUESTS = 4, 2
"""What `Metadata.interface` costs for an ENI that was not read before, and for one that was."""

SPARE_REQUESTS = 1
"""Metadata may forget our token in the middle of a turn; then one more is needed."""

CONDITION = "other hands"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MetadataDifference:
    """How metadata and the record differ. `since_s`: how long without a break, 0 if they agree. `turn_age_s`: since the last list."""

    count: int
    since_s: float
    turn_age_s: float | None


class MetadataWatch:
    """Used by one thread."""

    def __init__(
        self,
        context: ServiceContext,
        *,
        metadata: Metadata,
        learn_identity: Callable[[], InstanceIdentity],
        identity: Callable[[], InstanceIdentity | None],
        book: EniBook,
        resyncs: ResyncScheduler,
    ) -> None:
        self._datastore = context.datastore
        self._health = context.health
        self._demand = context.demand
        self._freeze = context.freeze
        self._clock = context.clock
        self._metadata = metadata
        self._learn_identity = learn_identity
        self._identity = identity
        self._book = book
        self._resyncs = resyncs
        self._asked = AskedDifferences()
        self._ticket = 0
        self._found_in_list: frozenset[Difference] = frozenset()
        self._is_list_fresh = False
        self._differing: tuple[int, float] | None = None  # count, and since when
        self._said = ""

    @property
    def is_different(self) -> bool:
        """Whether the last comparison found a difference."""
        return self._differing is not None

    def take_turn(self) -> int:
        """Make one turn. Returns: how many requests it made; an error ends it early and is logged, once.

        Until metadata has answered once, the start asks it: no turn is made.
        """
        began = self._metadata.request_count()
        if self._identity() is None:
            return 0
        try:
            self._refresh_identity()
            problem = self._follow_notices()
            self._book.list_metadata(self._metadata.list_interfaces())
            self._is_list_fresh = True
            ours = {eni.mac for eni in self._datastore.enis()}
            readings, _ = self._book.metadata()
            # Ours before those of others: a node with many of either has its own sandboxes' addresses compared first.
            for mac, one in sorted(readings.items(), key=lambda item: (item[1].tried_monotonic_s, item[0] not in ours, item[0])):
                is_cheap = one.shown is not None or one.known is not None
                cost = (LATER_REQUESTS if is_cheap else FIRST_REQUESTS) + SPARE_REQUESTS
                if self._metadata.request_count() - began + cost > REQUESTS_PER_TURN:
                    break
                self._read_eni(mac, one)
            self._say(problem)
        except CloudError as error:
            self._say(log_text(error))
        self.evaluate()
        return self._metadata.request_count() - began

    def was_shown(self, mac: MacAddress, since_monotonic_s: float) -> bool:
        """Whether a turn has listed an ENI since a monotonic time."""
        listed, listed_monotonic_s = self._book.metadata()
        return mac in listed and listed_monotonic_s > since_monotonic_s

    def difference(self) -> MetadataDifference:
        """What the last comparison found; from any thread."""
        now, differing, (_, listed) = self._clock.monotonic(), self._differing, self._book.metadata()
        age_s = now - listed if listed > float("-inf") else None
        return MetadataDifference(*((differing[0], now - differing[1]) if differing is not None else (0, 0.0)), age_s)

    def evaluate(self) -> None:
        """Compare the last turn's list and what was read with the record as it is now, and ask for a look at EC2 if one is due."""
        readings, _ = self._book.metadata()
        if not readings:
            return
        recent, recorded = self._recent(), self._recorded()
        # Later changes of ours must not turn an old list or reading into a difference, but they may end one.
        now = list_differences(
            [*recorded.values(), *self._others(readings)],
            frozenset(readings),
            unknown=self._unknown(readings),
            leaving={eni.mac: eni.eni_id for eni in self._datastore.enis() if eni.state is EniState.DETACHING},
            recent=recent,
        )
        differences = self._found_in_list = now if self._is_list_fresh else self._found_in_list & now
        self._is_list_fresh = False
        for mac, one in readings.items():
            eni = recorded.get(mac)
            now = frozenset()
            if eni is not None and one.shown is not None:
                now = eni_differences(eni, one.shown, recent=recent)
            found = now if one.is_fresh else one.found & now
            self._book.read_metadata(mac, found=found, is_fresh=False)
            differences |= found
        since = self._differing[1] if self._differing is not None else self._clock.monotonic()
        self._differing = (len(differences), since) if differences else None
        self._ask(differences)

    def _refresh_identity(self) -> None:
        """A new CIDR of the VPC changes the SNAT rules at the next repair; new security groups are for the pool to hand on."""
        known = self._identity()
        fresh = self._learn_identity()
        if known is not None and fresh.security_group_ids != known.security_group_ids:
            self._demand.trigger()

    def _follow_notices(self) -> str:
        """Take over what EC2 announces. Returns: why that is not known; it must not keep the ENIs from being looked at."""
        try:
            self._freeze.follow_notices(self._metadata.notices())
        except CloudError as error:
            return log_text(error)
        return ""

    def _read_eni(self, mac: MacAddress, known: Reading) -> None:
        now = self._clock.monotonic()
        # Also if it cannot be read: the others have their turn before it is tried again.
        self._book.read_metadata(mac, tried_monotonic_s=now, known=None)
        shown = self._metadata.interface(mac, known=known.known)
        self._book.read_metadata(mac, shown=shown, monotonic_s=now, is_fresh=True)

    def _recorded(self) -> dict[MacAddress, RecordedContents]:
        snapshot = self._datastore.snapshot()
        return recorded_contents(snapshot.enis.values(), snapshot.addresses.values())

    def _recent(self) -> Recent:
        is_growing = any(not intent.is_settled for intent in self._datastore.open_intents())
        removed = self._book.removed()
        given_back = {key: on for key, on in removed.items() if isinstance(key, IPv4Address)}
        return Recent(self._book.added().keys() | (removed.keys() - given_back.keys()), given_back, is_growing=is_growing)

    def _unknown(self, readings: Mapping[MacAddress, Reading]) -> dict[MacAddress, EniId]:
        """ENIs that were read and are not recorded in any state; not those that EC2 has shown and that we leave alone."""
        known = {eni.mac for eni in self._datastore.enis()}
        places = self._book.shown()
        read = {mac: one.shown.eni_id for mac, one in readings.items() if one.shown is not None}
        return {mac: eni_id for mac, eni_id in read.items() if mac not in known and eni_id not in places}

    def _others(self, readings: Mapping[MacAddress, Reading]) -> list[RecordedContents]:
        """ENIs that are not recorded, that EC2 has shown in their places, and that metadata has shown too: one that goes frees a place
        that nobody else would notice."""
        places = self._book.shown()
        for mac, one in readings.items():
            if one.shown is not None and one.shown.eni_id in places:
                self._book.observe(one.shown.eni_id, mac=mac)
        macs = {eni_id: self._book.of(eni_id).mac for eni_id in places}
        return [RecordedContents(mac, eni_id) for eni_id, mac in macs.items() if mac is not None]

    def _ask(self, differences: frozenset[Difference]) -> None:
        now = self._clock.monotonic()
        if due := self._asked.due(differences, now_s=now):
            self._ticket = self._resyncs.request(LookReason.METADATA, f"of instance metadata: {sentence(due)}")
            self._asked.mark(differences, now_s=now)
        answered = (
            "EC2 does not say so, it is asked again every hour" if self._resyncs.is_answered(self._ticket) else "EC2 is asked"
        )
        said = f"{CONDITION}: instance metadata: {sentence(differences)}; {answered}"
        self._health.report(CONDITION, said if differences else "")

    def _say(self, problem: str) -> None:
        if problem != self._said:
            self._said = problem
            log.info("instance metadata: %s", problem or "it answers again")
