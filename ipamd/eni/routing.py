"""Set up the host routing of this node's ENIs. Only addresses of an ENI whose routing is in place are assigned (I7).

An ENI is frozen while its link is gone, and until the link is back and EC2 or metadata shows the ENI (`links.py`). A frozen ENI keeps
its sandboxes, its addresses are not assigned, and its routing is not set up until it is thawed. A restart forgets which ENIs are
frozen, but then too an ENI is set up only if its link is present.

A set-up that fails is retried, and a waiting ADD gets the reason in its error. The ENI's addresses count towards the pool's target
meanwhile, because they can be assigned as soon as the routing is in place, and another ENI would probably fail too. If only one ENI
fails for a long time, the fault may be the ENI's: its addresses no longer count, and another ENI is created. If several fail, the
fault is the node's, and no further ENI helps. An ENI that was in use and was unplugged is always replaced.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace

from ipamd.core.backoffs import NODE, soonest_s
from ipamd.core.context import Service, ServiceContext
from ipamd.eni.book import EniBook, EniFacts, MissingLink
from ipamd.model.blocked import Blocked
from ipamd.model.conditions import ConditionCode, problem
from ipamd.model.eni import Eni, EniState
from ipamd.model.errors import IpamError, WiringError, log_text
from ipamd.model.family import IpAddress, IpNetwork
from ipamd.model.growth_state import GrowthRefusal, growth_refusal
from ipamd.model.ids import EniId, MacAddress
from ipamd.ports.kernel import HostNetwork

STUCK_AFTER_S = 60.0
"""Time after which the addresses of an ENI without host routing no longer count towards the pool's target. Ours: twice the interval at
which host routing is compared (ipamd/host/network.py)."""

ROUTING = "host routing"
"""Back-off key, with an ENI whose set-up failed."""

log = logging.getLogger(__name__)


class EniRouting(Service):
    """Sets up, freezes and tears down the routing of ENIs.

    Safe from any thread, because the state is in the datastore and the book. Only the pool's thread may call `retry_due` and the
    public methods after it.
    """

    def __init__(self, context: ServiceContext, *, hostnet: HostNetwork, book: EniBook) -> None:
        super().__init__(context)
        self._hostnet = hostnet
        self._book = book

    def await_link(self, mac: MacAddress) -> None:
        """Wait, within a bound, for the link of an ENI that is being attached. The link usually appears before EC2 shows the
        attachment. If it does not appear, that is logged.
        """
        try:
            self._hostnet.await_link(mac)
        except IpamError as error:
            log.info("link did not appear error=%s", log_text(error))

    def links(self) -> frozenset[MacAddress] | None:
        """Return the MAC addresses of the links that are present now; None if the kernel did not answer."""
        try:
            return self._hostnet.links()
        except IpamError as error:
            log.info("reading links failed error=%s", log_text(error))
            return None

    def set_up_all(self) -> list[str]:
        """Set up host routing of every attached ENI, which makes its addresses assignable (I7).

        Returns: one sentence per ENI that could not be set up. The others are set up.
        """
        frozen = self.frozen()
        enis = [eni for eni in self._datastore.enis() if eni.is_in_pool and eni.eni_id not in frozen]
        secondary = [eni for eni in enis if not eni.is_primary]
        try:
            errors = self._hostnet.setup_enis(secondary)
        except IpamError as error:
            errors = dict.fromkeys((eni.eni_id for eni in secondary), error)
        problems = []
        for eni in enis:
            problem = self._record_set_up(eni, errors.get(eni.eni_id))
            if problem:
                problems.append(f"{eni.eni_id}: {problem}")
        return problems

    def set_up(self, eni: Eni, *, is_counted: bool = True) -> str:
        """Set up host routing of one ENI, unless it is frozen. After a failure its addresses stay unassignable, and the set-up is
        retried.

        `is_counted`: a failure delays the pool's next try. False if the caller itself repeats the set-up at intervals.
        Returns: the error, "" if there was none.
        """
        error: IpamError | None = None
        reason = self._book.facts_of(eni.eni_id).frozen
        if reason:
            frozen = WiringError(f"ENI {eni.eni_id} is frozen: {reason}", details="it is set up when that is over")
            return self._record_failure(eni, frozen, is_counted=is_counted)
        if not eni.is_primary:
            try:
                self._hostnet.setup_eni(eni)
            except IpamError as refused:
                error = refused
        return self._record_set_up(eni, error, is_counted=is_counted)

    def _record_set_up(self, eni: Eni, error: IpamError | None, *, is_counted: bool = True) -> str:
        """Record whether the addresses of an ENI are assignable after its set-up.

        `error`: why the kernel did not set it up; None if it did. `is_counted`: as in `set_up`. Returns: the error, "" without one.
        """
        try:
            if error is not None:
                self._mark(eni.eni_id, host_ready=False)
                return self._record_failure(eni, error, is_counted=is_counted)
            if self._mark(eni.eni_id, host_ready=True):
                self._demand.announce_supply()
        except IpamError as refused:  # the datastore did not record it
            return self._record_failure(eni, refused, is_counted=is_counted)
        self._health.resolve(f"host routing of {eni.eni_id}")
        return ""

    def _record_failure(self, eni: Eni, error: IpamError, *, is_counted: bool) -> str:
        """Report that an ENI was not set up. Returns: the error as a sentence."""
        problem = log_text(error)
        log.warning("host routing setup failed eni=%s error=%s", eni.eni_id, problem)
        if is_counted:
            self._health.record_error(f"host routing of {eni.eni_id}", error)
            self._backoffs.back_off((ROUTING, eni.eni_id), NODE)
        self._book.observe(eni.eni_id, unready_why=problem)
        return problem

    def remove_stale_prefix_rules(
        self, eni: Eni, fresh: Collection[IpAddress], *, wired: Collection[IpAddress], rejected: Collection[IpNetwork] = ()
    ) -> None:
        """Remove the rule of a prefix if it would route new addresses of an ENI by another ENI's table (I7), or if the prefix is in
        the subnet of a recorded ENI and is no longer used.

        Args:
            fresh: the new addresses.
            wired: addresses of sandboxes, recorded or not.
            rejected: prefixes for whose free addresses the node adds an unreachable route.
        Raises: WiringError, KernelDumpError.
        """
        if rejected:
            self._hostnet.reject_free_addresses(rejected)
        recorded_prefixes = {row.prefix for row in self._datastore.addresses()}

        def is_needless(prefix: IpNetwork, table: int) -> bool:
            if any(address in prefix for address in fresh):
                return table != eni.route_table
            if prefix in recorded_prefixes or any(address in prefix for address in wired):
                return False
            return any(prefix.network_address in recorded.subnet_cidr for recorded in self._datastore.enis())

        self._hostnet.remove_prefix_rules(is_needless)

    def set_up_again(self, eni_id: EniId) -> None:
        """Set up an ENI that is back. After a failure the host network reconciler retries."""
        eni = self._datastore.eni(eni_id)
        if eni is not None and eni.is_in_pool and not self._book.facts_of(eni_id).frozen:
            self.set_up(eni)

    def freeze(self, eni_id: EniId, *, was_there: bool = False) -> None:
        """Stop assigning addresses of an ENI, because its link is gone. Its sandboxes keep their addresses. Idempotent; an unknown ENI
        is fine. `was_there`: see `MissingLink`.
        """
        self._book.observe(eni_id, link=MissingLink(was_there))
        self.report_frozen(eni_id)
        if self._mark(eni_id, host_ready=False):
            self._book.observe(eni_id, is_unplugged=True)
            self._demand.trigger()

    def report_frozen(self, eni_id: EniId) -> None:
        """Report why an ENI is frozen, as far as is known now; or end the report if the ENI is not frozen."""
        cause = self._book.facts_of(eni_id).frozen
        frozen = problem(ConditionCode.ENI_FROZEN, eni=eni_id, cause=cause) if cause else None
        self._health.report(f"frozen {eni_id}", frozen)
        if cause and not self._book.facts_of(eni_id).frozen:
            self._health.report(f"frozen {eni_id}", None)  # another thread has thawed it meanwhile

    def thaw(self, eni_id: EniId) -> None:
        """End the freeze of an ENI: its routing may be set up again."""
        self._book.observe(eni_id, link=None, is_unplugged=False)
        self.report_frozen(eni_id)

    def frozen(self) -> Mapping[EniId, str]:
        """Return the frozen ENIs, each with the reason. Their addresses are not assigned, and none are allocated on them."""
        return {eni_id: facts.frozen for eni_id, facts in self._book.all().items() if facts.frozen}

    def tear_down(self, eni: Eni) -> None:
        """Remove the routing of an ENI that is gone for good, except for what other recorded ENIs need."""
        self.thaw(eni.eni_id)
        if not eni.managed or eni.is_primary:
            return  # nothing was set up for it
        remaining = [other for other in self._datastore.enis() if other.eni_id != eni.eni_id]
        try:
            self._hostnet.teardown_eni(eni, remaining=remaining)
        except IpamError as error:
            log.warning("removing the routing of a detached ENI failed eni=%s error=%s", eni.eni_id, log_text(error))

    def retry_due(self) -> None:
        """Set up the ENIs whose next try is due. ADDs may wait for their addresses."""
        for eni in self._unready():
            if self._backoffs.is_due((ROUTING, eni.eni_id)):
                self.set_up(eni)

    def refusal(self) -> GrowthRefusal | None:
        """Return why existing addresses cannot be assigned; None if every ENI is set up."""
        enis = [eni.eni_id for eni in self._unready()]
        if not enis:
            return None
        reasons = "; ".join(f"{eni_id}: {self._book.facts_of(eni_id).unready_why or 'not set up yet'}" for eni_id in enis)
        return growth_refusal(
            f"host routing of an ENI is not in place: {reasons}",
            "see `ip link`, `ip rule` and the daemon's log on this node; the set-up is retried",
            self.next_retry_s(),
            kind=Blocked.HOST_ROUTING,
        )

    def has_stuck_eni(self) -> bool:
        """Whether exactly one ENI has been without host routing for a long time, and all others have it.

        Unplugged ENIs do not count.
        """
        all_facts = [self._book.facts_of(eni.eni_id) for eni in self._unready()]
        counted_facts = [facts for facts in all_facts if not facts.is_unplugged]
        return len(counted_facts) == 1 and self._is_stuck(counted_facts[0])

    def unplugged(self) -> frozenset[EniId]:
        """Return the ENIs that were in use and have been without their link for a long time.

        Their addresses do not count towards the target.
        """
        facts_of = {eni.eni_id: self._book.facts_of(eni.eni_id) for eni in self._unready()}
        return frozenset(eni_id for eni_id, facts in facts_of.items() if facts.is_unplugged and self._is_stuck(facts))

    def next_retry_s(self) -> float | None:
        """Seconds until a set-up is due again; None if all are done."""
        return soonest_s(self._backoffs.left_s((ROUTING, eni.eni_id)) for eni in self._unready())

    def _unready(self) -> list[Eni]:
        """Return the ENIs that are in the pool and not set up, and note in the book since when."""
        enis = [eni for eni in self._datastore.enis() if eni.is_in_pool and not eni.host_ready]
        self._backoffs.retain(ROUTING, {eni.eni_id for eni in enis})
        for eni in enis:
            if self._book.facts_of(eni.eni_id).unready_since is None:
                self._book.observe(eni.eni_id, unready_since=self._clock.monotonic())
        return enis

    def _is_stuck(self, facts: EniFacts) -> bool:
        return facts.unready_since is not None and self._clock.monotonic() - facts.unready_since >= STUCK_AFTER_S

    def _mark(self, eni_id: EniId, *, host_ready: bool) -> bool:
        """Change `host_ready` of a recorded ENI, unless the ENI was removed meanwhile. Returns: whether it changed."""
        eni = self._datastore.eni(eni_id)
        if eni is None or (host_ready and eni.host_ready):
            return False  # False is always written, because another thread may be about to commit True
        with self._datastore.transaction() as uow:
            eni = self._datastore.eni(eni_id)  # read again: nobody else changes it before this transaction ends
            if eni is None or (host_ready and (self._book.facts_of(eni_id).frozen or eni.state is not EniState.ATTACHED)):
                return False
            uow.put_eni(replace(eni, host_ready=host_ready))
        if host_ready:
            self._book.observe(eni_id, unready_since=None, unready_why="")
        return eni.host_ready != host_ready
