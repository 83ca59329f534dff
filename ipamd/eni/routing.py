"""Host routing of this node's ENIs: only an ENI whose routing is in place gives addresses (I7).

An ENI is frozen while its link is gone, and until the link is back and somebody else shows the ENI (`links.py`). A frozen ENI keeps
its sandboxes and gives no address, and its routing is not set up again until it is thawed. After a restart the ENI is set up only if
its link is there.

A set-up that fails is tried again, and an ADD that waits hears why. The addresses of such an ENI are there, and come as soon as the
host lets them: another ENI for the same ADDs would only be one more that cannot be used. If one ENI alone fails for long, it may be
the ENI's fault, and one other takes its place; if several fail, it is the node's, and no ENI more will help. An ENI that was in use
and was unplugged is nobody's fault: it is replaced, however many are.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace

from ipamd.core.agenda import NODE, soonest_s
from ipamd.core.context import Service, ServiceContext
from ipamd.eni.book import FROZEN, EniBook, EniFacts, MissingLink
from ipamd.model.eni import Eni, EniState
from ipamd.model.errors import IpamError, WiringError, log_text
from ipamd.model.family import IpAddress, IpNetwork
from ipamd.model.ids import EniId, MacAddress
from ipamd.model.pool import Blocked, Refusal
from ipamd.ports import HostNetwork

STUCK_AFTER_S = 60.0
"""From then on the addresses of one ENI without host routing are no supply. Ours: twice the interval at which host routing is compared
(ipamd/host/network.py)."""

ROUTING = "host routing"
"""Key in the agenda of an ENI whose set-up failed."""

log = logging.getLogger(__name__)


class EniRouting(Service):
    """Sets up, tries again, freezes and tears down. Safe from any thread: the state is in the datastore and in the book; the part from
    `retry_due` on is for the pool's thread."""

    def __init__(self, context: ServiceContext, *, hostnet: HostNetwork, book: EniBook) -> None:
        super().__init__(context)
        self._hostnet = hostnet
        self._book = book

    def await_link(self, mac: MacAddress) -> None:
        """Wait, bounded, for the link of an ENI that is being attached: the kernel shows it before EC2, so EC2 is asked once."""
        try:
            self._hostnet.await_link(mac)
        except IpamError as error:
            log.info("the link has not appeared, EC2 is asked instead error=%s", log_text(error))

    def links(self) -> frozenset[MacAddress] | None:
        """MAC addresses of the links present now; None if the kernel did not tell."""
        try:
            return self._hostnet.links()
        except IpamError as error:
            log.info("the links are not known error=%s", log_text(error))
            return None

    def set_up_all(self) -> list[str]:
        """Set up host routing of every attached ENI; only then are its addresses assignable (I7).

        Returns: one sentence per ENI that could not be set up; the others are set up all the same.
        """
        frozen = self.frozen()
        enis = [eni for eni in self._datastore.enis() if eni.is_in_pool and eni.eni_id not in frozen]
        return [f"{eni.eni_id}: {problem}" for eni in enis if (problem := self.set_up(eni))]

    def set_up(self, eni: Eni, *, is_counted: bool = True) -> str:
        """Set up host routing of one ENI; one that is frozen is not. A failure is recorded, and tried again: its addresses stay
        unassignable. `is_counted`: a failure makes the next try of the pool wait; not one of a pass that comes by itself.
        Returns: what failed, "" if nothing did."""
        try:
            if reason := self._book.of(eni.eni_id).frozen:
                raise WiringError(f"ENI {eni.eni_id} is frozen: {reason}", details="it is set up when that is over")
            if not eni.is_primary:
                try:
                    self._hostnet.setup_eni(eni)
                except IpamError:
                    self._mark(eni.eni_id, host_ready=False)
                    raise
            if self._mark(eni.eni_id, host_ready=True):
                self._demand.announce_supply()
            self._health.resolve(f"host routing of {eni.eni_id}")
        except IpamError as error:
            problem = log_text(error)
            log.warning("host routing is not in place eni=%s error=%s", eni.eni_id, problem)
            if is_counted:
                self._health.record_error(f"host routing of {eni.eni_id}", error)
                self._agenda.put_off((ROUTING, eni.eni_id), NODE)
            self._book.observe(eni.eni_id, unready_why=problem)
            return problem
        return ""

    def claim(
        self, eni: Eni, fresh: Collection[IpAddress], *, wired: Collection[IpAddress], answered: Collection[IpNetwork] = ()
    ) -> None:
        """Let no rule of a prefix send new addresses of an ENI by another one's table (I7); rules of prefixes that nobody has any more
        go too. `wired`: addresses of sandboxes, recorded or not. `answered`: whose free addresses are answered for from now on.
        Raises: WiringError, KernelDumpError.
        """
        if answered:
            self._hostnet.answer_for(answered)
        known = {row.prefix for row in self._datastore.addresses()}

        def is_needless(prefix: IpNetwork, table: int) -> bool:
            if any(one in prefix for one in fresh):
                return table != eni.route_table
            if prefix in known or any(one in prefix for one in wired):
                return False
            return any(prefix.network_address in each.subnet_cidr for each in self._datastore.enis())

        self._hostnet.remove_prefix_rules(is_needless)

    def set_up_again(self, eni_id: EniId) -> None:
        """Set up an ENI that is there again. A refusal is recorded, and the host network reconciler tries again."""
        eni = self._datastore.eni(eni_id)
        if eni is not None and eni.is_in_pool and not self._book.of(eni_id).frozen:
            self.set_up(eni)

    def freeze(self, eni_id: EniId, *, was_there: bool = False) -> None:
        """Give no address of this ENI from now on: its link is gone. Its sandboxes stay as they are. Idempotent; an unknown ENI is
        fine. `was_there`: see `MissingLink`."""
        self._book.observe(eni_id, link=MissingLink(was_there))
        self._health.report(f"frozen {eni_id}", f"ENI {eni_id} gives no address: {FROZEN}")
        if self._mark(eni_id, host_ready=False):
            self._book.observe(eni_id, is_unplugged=True)
            self._demand.trigger()

    def thaw(self, eni_id: EniId) -> None:
        """What froze it is over: its routing may be set up again."""
        self._book.observe(eni_id, link=None, is_unplugged=False)
        self._health.report(f"frozen {eni_id}", "")

    def frozen(self) -> Mapping[EniId, str]:
        """The frozen ENIs, with the reason of each: they give no address, and nothing is asked for on them."""
        return {eni_id: facts.frozen for eni_id, facts in self._book.all().items() if facts.frozen}

    def tear_down(self, eni: Eni) -> None:
        """Remove the routing of an ENI that is gone for good; what other recorded ENIs need stays."""
        self.thaw(eni.eni_id)
        if not eni.managed or eni.is_primary:
            return  # nothing was set up for it
        keep = [other for other in self._datastore.enis() if other.eni_id != eni.eni_id]
        try:
            self._hostnet.teardown_eni(eni, keep=keep)
        except IpamError as error:
            log.warning("routing of an absent ENI stays behind eni=%s error=%s", eni.eni_id, log_text(error))

    def retry_due(self) -> None:
        """Set up again what is due; for waiting ADDs."""
        for eni in self._unready():
            if self._agenda.is_due((ROUTING, eni.eni_id)):
                self.set_up(eni)

    def refusal(self) -> Refusal | None:
        """Why addresses that are there cannot be given; None if every ENI is set up."""
        enis = [eni.eni_id for eni in self._unready()]
        if not enis:
            return None
        reasons = "; ".join(f"{eni_id}: {self._book.of(eni_id).unready_why or 'not set up yet'}" for eni_id in enis)
        return Refusal(
            f"host routing of an ENI is not in place: {reasons}",
            "see `ip link`, `ip rule` and the daemon's log on this node; it is tried again by itself",
            self.next_retry_s(),
            kind=Blocked.HOST_ROUTING,
        )

    def has_stuck_eni(self) -> bool:
        """Whether one ENI, and it alone, has not been set up for long. Those that were unplugged do not count."""
        facts = [one for eni in self._unready() if not (one := self._book.of(eni.eni_id)).is_unplugged]
        return [self._is_stuck(one) for one in facts] == [True]

    def unplugged(self) -> frozenset[EniId]:
        """ENIs that were in use and have been without their link for long: their addresses are no supply."""
        facts = {eni.eni_id: self._book.of(eni.eni_id) for eni in self._unready()}
        return frozenset(eni_id for eni_id, one in facts.items() if one.is_unplugged and self._is_stuck(one))

    def next_retry_s(self) -> float | None:
        """Seconds until a set-up is due again; None if all are done."""
        return soonest_s(self._agenda.left_s((ROUTING, eni.eni_id)) for eni in self._unready())

    def _unready(self) -> list[Eni]:
        """The ENIs that are in the pool and not set up, each with the time since when in the book."""
        enis = [eni for eni in self._datastore.enis() if eni.is_in_pool and not eni.host_ready]
        self._agenda.keep_only(ROUTING, {eni.eni_id for eni in enis})
        for eni in enis:
            if self._book.of(eni.eni_id).unready_since is None:
                self._book.observe(eni.eni_id, unready_since=self._clock.monotonic())
        return enis

    def _is_stuck(self, facts: EniFacts) -> bool:
        return facts.unready_since is not None and self._clock.monotonic() - facts.unready_since >= STUCK_AFTER_S

    def _mark(self, eni_id: EniId, *, host_ready: bool) -> bool:
        """Change `host_ready` of the recorded ENI; do nothing if it was forgotten while its routing was set up."""
        known = self._datastore.eni(eni_id)
        if known is None or (host_ready and known.host_ready):
            return False  # "not ready" is always written: another thread may be about to commit "ready"
        with self._datastore.transaction() as uow:
            known = self._datastore.eni(eni_id)  # units of work are serialised: nobody changes it before ours ends
            if known is None or (host_ready and (self._book.of(eni_id).frozen or known.state is not EniState.ATTACHED)):
                return False
            uow.put_eni(replace(known, host_ready=host_ready))
        if host_ready:
            self._book.observe(eni_id, unready_since=None, unready_why="")
        return known.host_ready != host_ready
