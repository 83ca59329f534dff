"""Look at instance metadata in turns, a few requests each, and ask for a look at EC2 when it differs from the record.

A turn refreshes the node's identity (VPC CIDRs, security groups), asks for a spot instance's notices, lists the ENIs, and reads those
that were not read for longest, as many as the budget of requests allows: REQUESTS_PER_TURN, whatever the number of ENIs. Metadata is
throttled for the whole instance (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html), and other
programs on the node need it too.
Nothing is removed because of metadata (I7); a failed turn says nothing (I11).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from ipamd.core.context import ServiceContext
from ipamd.eni.enis import EniService
from ipamd.eni.resync import CloudLook, LookReason
from ipamd.model.cloud import InstanceIdentity, MetadataEni
from ipamd.model.eni import Eni, EniState
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

VIEW_S = 750.0
"""Age of the oldest reading in a view that counts as a witness. Ours: two ENIs a turn, so 15 are read within 600 s; and what EC2 has
not shown for MASS_LOSS_AGE_S was changed by us RECENT_S before that or earlier, so 150 s and more before any of these readings."""

CONDITION = "other hands"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Reading:
    """One ENI as it was read, and when."""

    shown: MetadataEni
    monotonic_s: float


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
        enis: EniService,
        look: CloudLook,
    ) -> None:
        self._datastore = context.datastore
        self._health = context.health
        self._demand = context.demand
        self._freeze = context.freeze
        self._clock = context.clock
        self._metadata = metadata
        self._learn_identity = learn_identity
        self._identity = identity
        self._enis = enis
        self._look = look
        self._asked = AskedDifferences()
        self._ticket = 0
        self._listed: frozenset[MacAddress] = frozenset()
        self._listed_monotonic_s = float("-inf")
        self._read: dict[MacAddress, _Reading] = {}
        self._order: dict[MacAddress, None] = {}  # of the last try to read, oldest first
        self.is_different = False
        self._differing: tuple[int, float] | None = None  # count, and since when
        self._fresh: set[MacAddress] = set()  # read since the last comparison
        self._is_list_fresh = False
        self._found: dict[MacAddress, frozenset[Difference]] = {}
        self._found_in_list: frozenset[Difference] = frozenset()
        self._in_places: dict[EniId, MacAddress] = {}
        self._said = ""
        self._known: dict[MacAddress, Eni] | None = None  # as EC2 showed them at the start, until metadata was read or lacked one

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
            self._listed, recorded = self._metadata.list_interfaces(), {eni.mac for eni in self._datastore.enis()}
            self._listed_monotonic_s, self._is_list_fresh = self._clock.monotonic(), True
            self._read = {mac: eni for mac, eni in self._read.items() if mac in self._listed}
            self._order = {mac: None for mac in self._order if mac in self._listed}
            self._known = self._still_known()
            # Ours before those of others: a node with many of either has its own sandboxes' addresses compared first.
            for mac in [*sorted(self._listed - self._order.keys(), key=lambda mac: (mac not in recorded, mac)), *self._order]:
                is_cheap = mac in self._read or mac in self._known
                cost = (LATER_REQUESTS if is_cheap else FIRST_REQUESTS) + SPARE_REQUESTS
                if self._metadata.request_count() - began + cost > REQUESTS_PER_TURN:
                    break
                self._read_eni(mac)
            self._say(problem)
        except CloudError as error:
            self._say(log_text(error))
        self.evaluate()
        return self._metadata.request_count() - began

    def was_shown(self, mac: MacAddress, since_monotonic_s: float) -> bool:
        """Whether a turn has listed an ENI since a monotonic time."""
        return mac in self._listed and self._listed_monotonic_s > since_monotonic_s

    def view(self) -> tuple[MetadataEni, ...] | None:
        """Every ENI as read lately, for whoever needs a second witness; None if one was not. From any thread.

        Lately is less than VIEW_S ago.
        """
        listed, read = self._listed, dict(self._read)
        oldest = self._clock.monotonic() - VIEW_S
        lately = tuple(read[mac].shown for mac in listed if mac in read and read[mac].monotonic_s > oldest)
        is_complete = len(lately) == len(listed) > 0 and self._listed_monotonic_s > oldest
        return lately if is_complete else None

    def difference(self) -> MetadataDifference:
        """What the last comparison found; from any thread."""
        now, differing, listed = self._clock.monotonic(), self._differing, self._listed_monotonic_s
        age_s = now - listed if listed > float("-inf") else None
        return MetadataDifference(*((differing[0], now - differing[1]) if differing is not None else (0, 0.0)), age_s)

    def evaluate(self) -> None:
        """Compare the last turn's list and what was read with the record as it is now, and ask for a look at EC2 if one is due."""
        if not self._listed:
            return
        recent, recorded = self._recent(), self._recorded()
        # Later changes of ours must not turn an old list or reading into a difference, but they may end one.
        now = list_differences(
            [*recorded.values(), *self._others()],
            self._listed,
            unknown=self._unknown(),
            leaving={eni.mac: eni.eni_id for eni in self._datastore.enis() if eni.state is EniState.DETACHING},
            recent=recent,
        )
        self._found_in_list = now if self._is_list_fresh else self._found_in_list & now
        for mac, reading in self._read.items():
            eni = recorded.get(mac)
            now = frozenset() if eni is None else eni_differences(eni, reading.shown, recent=recent)
            self._found[mac] = now if mac in self._fresh else self._found.get(mac, frozenset()) & now
        self._fresh, self._is_list_fresh = set(), False
        self._found = {mac: found for mac, found in self._found.items() if found and mac in self._read}
        differences = self._found_in_list.union(*self._found.values())
        self.is_different = bool(differences)
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

    def _read_eni(self, mac: MacAddress) -> None:
        self._order.pop(mac, None)
        self._order[mac] = None  # also if it cannot be read: the others have their turn before it is tried again
        now = self._clock.monotonic()
        known = self._known.pop(mac, None) if self._known else None
        self._read[mac] = _Reading(self._metadata.interface(mac, known=known), now)
        self._fresh.add(mac)

    def _still_known(self) -> dict[MacAddress, Eni]:
        """ENIs that the start has compared with EC2 and that metadata has listed since: of those only addresses are read."""
        known = {eni.mac: eni for eni in self._datastore.enis()} if self._known is None else self._known
        return {mac: eni for mac, eni in known.items() if mac in self._listed and eni.state is EniState.ATTACHED}

    def _recorded(self) -> dict[MacAddress, RecordedContents]:
        snapshot = self._datastore.snapshot()
        return recorded_contents(snapshot.enis.values(), snapshot.addresses.values())

    def _recent(self) -> Recent:
        changes = self._enis.recent_changes
        is_growing = any(not intent.is_settled for intent in self._datastore.open_intents())
        given_back = changes.given_back()
        objects = changes.added().keys() | (changes.removed().keys() - given_back.keys())
        return Recent(objects, given_back, is_growing=is_growing)

    def _unknown(self) -> dict[MacAddress, EniId]:
        """ENIs that were read and are not recorded in any state; not those that EC2 has shown and that we leave alone."""
        known = {eni.mac for eni in self._datastore.enis()}
        places = self._enis.occupied()
        read = {mac: one.shown.eni_id for mac, one in self._read.items()}
        return {mac: eni_id for mac, eni_id in read.items() if mac not in known and eni_id not in places}

    def _others(self) -> list[RecordedContents]:
        """ENIs that are not recorded, that EC2 has shown in their places, and that metadata has shown too: one that goes frees a place
        that nobody else would notice."""
        places = self._enis.occupied()
        read = {one.shown.eni_id: mac for mac, one in self._read.items()}
        self._in_places = {eni_id: mac for eni_id, mac in (self._in_places | read).items() if eni_id in places}
        return [RecordedContents(mac, eni_id) for eni_id, mac in self._in_places.items()]

    def _ask(self, differences: frozenset[Difference]) -> None:
        if not differences:
            self._health.clear_condition(CONDITION)
            return
        now = self._clock.monotonic()
        due = self._asked.due(differences, now_s=now)
        if due:
            self._ticket = self._look.request(LookReason.METADATA, f"of instance metadata: {sentence(due)}")
            self._asked.mark(differences, now_s=now)
        answered = "EC2 does not say so, it is asked again every hour" if self._look.is_answered(self._ticket) else "EC2 is asked"
        self._health.set_condition(CONDITION, f"{CONDITION}: instance metadata: {sentence(differences)}; {answered}")

    def _say(self, problem: str) -> None:
        if problem != self._said:
            self._said = problem
            log.info("instance metadata: %s", problem or "it answers again")
