"""What the planner releases, for any pool: only what is free, never so much that the pool is short, nothing under constant load."""

from __future__ import annotations

from datetime import UTC, datetime
from ipaddress import IPv4Address, IPv4Network

from hypothesis import assume, given
from hypothesis import strategies as st

from ipamd.datastore.memory_state import MemoryState
from ipamd.model.address import Address, AddressState
from ipamd.model.eni import Eni, InstanceLimits
from ipamd.model.ids import AttachmentKey, EniId, MacAddress, SubnetId
from ipamd.model.plan import deficit_count, plan, surplus_count
from ipamd.model.pool_actions import Allocate, CreateEni, ReleaseAddresses, ReleaseEni
from ipamd.model.pool_settings import PoolSettings
from ipamd.model.pool_snapshot import PoolSnapshot, pool_snapshot
from ipamd.model.release import releasable
from ipamd.model.snapshot import Snapshot
from ipamd.model.surplus import Hold
from ipamd.pool.demand_window import DemandWindow
from tests.fakes.clock import FakeClock

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LIMITS = InstanceLimits("t", 4, 6)
FREE, ASSIGNED, COOLING = AddressState.FREE, AddressState.ASSIGNED, AddressState.COOLING
STATES = (FREE, FREE, FREE, ASSIGNED, COOLING, AddressState.QUARANTINED)


class Pool:
    """Addresses on ENIs as the datastore has them, with EC2 that does at once what it is asked."""

    def __init__(self) -> None:
        self.enis: dict[EniId, Eni] = {}
        self.rows: dict[IPv4Address, Address] = {}
        self._next = 0
        self.add_eni(0)

    def add_eni(self, index: int, *, created_by_us: bool = True) -> EniId:
        """An ENI without addresses; index 0 is the primary one."""
        eni_id = EniId(f"eni-{index}")
        self.enis[eni_id] = Eni(
            eni_id,
            MacAddress(f"02:00:00:00:00:{index:02x}"),
            index,
            0,
            SubnetId("s"),
            IPv4Network("10.0.0.0/8"),
            IPv4Address(f"10.255.0.{index + 1}"),
            is_primary=index == 0,
            host_ready=True,
            created_by_us=created_by_us and index > 0,
        )
        return eni_id

    def add(self, eni_id: EniId, states: list[AddressState], *, is_prefix: bool = False) -> None:
        """Addresses in these states; 16 of them make a prefix."""
        block = IPv4Address("10.0.0.0") + 16 * self._next
        self._next += 1
        prefix = IPv4Network((block, 28)) if is_prefix else None
        for offset, state in enumerate(states):
            if not is_prefix and offset and offset % 16 == 0:
                block, self._next = IPv4Address("10.0.0.0") + 16 * self._next, self._next + 1
            address = block + offset % 16
            owner = AttachmentKey(f"c-{int(address)}", "eth0") if state is ASSIGNED else None
            cooling = NOW if state is COOLING else None
            self.rows[address] = Address(address, eni_id, state, NOW, prefix, owner=owner, cooling_until=cooling)

    def records(self) -> Snapshot:
        """What the datastore would copy."""
        return Snapshot(self.enis, self.rows, {}, {}, {})

    def snapshot(self, settings: PoolSettings, hold: Hold | None = None) -> PoolSnapshot:
        """The planner's input; by default all that is surplus has been so for long."""
        made = pool_snapshot(MemoryState(self.records(), clock=FakeClock()).stock(), limits=LIMITS)
        known = hold or Hold(
            surplus_count(made, settings),
            ages=dict.fromkeys(self.enis, 3600.0),
            releasable=releasable(self.records(), withheld=frozenset()),
        )
        return PoolSnapshot(**{name: getattr(made, name) for name in PoolSnapshot.__slots__ if name != "hold"}, hold=known)

    def apply(self, action: object) -> None:
        """Do what an action asks."""
        match action:
            case ReleaseEni(eni_id):
                assert eni_id != "eni-0"
                assert all(row.state is FREE for row in self.rows.values() if row.eni_id == eni_id)
                del self.enis[eni_id]
                self.rows = {address: row for address, row in self.rows.items() if row.eni_id != eni_id}
            case ReleaseAddresses(eni_id, addresses, prefixes):
                for address in [*addresses, *(a for prefix in prefixes for a in prefix)]:
                    row = self.rows.pop(address)
                    assert row.state is FREE
                    assert row.eni_id == eni_id
                    assert (row.prefix in prefixes) == (row.prefix is not None), "a prefix goes whole"
            case Allocate(eni_id, count, 0):
                self.add(eni_id, [FREE] * count)
            case Allocate(eni_id, 0, count):
                for _ in range(count):
                    self.add(eni_id, [FREE] * 16, is_prefix=True)
            case CreateEni(index, address_count, prefix_count):
                eni_id = self.add_eni(index)
                self.add(eni_id, [FREE] * address_count)
                for _ in range(prefix_count):
                    self.add(eni_id, [FREE] * 16, is_prefix=True)


settings_of_any_kind = st.builds(
    PoolSettings,
    warm_eni_target=st.integers(0, 2),
    warm_ip_target=st.integers(0, 8),
    minimum_ip_target=st.integers(0, 12),
    warm_prefix_target=st.integers(0, 2),
    prefix_delegation=st.booleans(),
)


@st.composite
def pools(draw: st.DrawFn) -> Pool:
    """Up to four ENIs with singles and prefixes in any state."""
    pool = Pool()
    for index in range(1, draw(st.integers(1, 4))):
        pool.add_eni(index, created_by_us=draw(st.integers(0, 4)) > 0)
    for eni_id in list(pool.enis):
        pool.add(eni_id, draw(st.lists(st.sampled_from(STATES), max_size=4)))
        if draw(st.booleans()):
            pool.add(eni_id, draw(st.lists(st.sampled_from(STATES), min_size=16, max_size=16)), is_prefix=True)
        if draw(st.booleans()):
            pool.add(eni_id, [FREE] * 16, is_prefix=True)
    return pool


@given(pools(), settings_of_any_kind)
def test_what_goes_is_free_and_the_pool_is_not_short_without_it(pool: Pool, settings: PoolSettings) -> None:
    """`apply` checks that each address is free; afterwards nothing is asked of EC2, in neither direction, but for what the ENIs' whole
    release made possible."""
    decided = plan(pool.snapshot(settings), settings=settings)
    releases = [action for action in decided.actions if isinstance(action, ReleaseAddresses | ReleaseEni)]
    assume(
        not (releases and decided.deficit_count)
    )  # an exchange, which makes room for a /28, is no release of what is in excess
    assert not releases or len(releases) == len(decided.actions)
    for action in releases:
        pool.apply(action)
    if releases:
        after = pool.snapshot(settings)
        assert deficit_count(after, settings) == 0
        assert plan(after, settings=settings).actions == ()


@given(pools(), settings_of_any_kind)
def test_nothing_goes_before_its_window_is_over(pool: Pool, settings: PoolSettings) -> None:
    """Without a whole window, and with nothing settled, no release: an exchange makes room for a /28 that is missing."""
    now = pool.snapshot(settings, Hold(None, releasable=releasable(pool.records(), withheld=frozenset())))
    decided = plan(now, settings=settings)
    assert decided.deficit_count or not [a for a in decided.actions if isinstance(a, ReleaseAddresses | ReleaseEni)]


@given(settings_of_any_kind, st.lists(st.integers(0, 14), min_size=1, max_size=6))
def test_a_periodic_load_makes_no_call_after_its_first_periods(settings: PoolSettings, loads: list[int]) -> None:
    """A load that repeats within the hold window, for hours: after two windows EC2 is asked for nothing."""
    pool, window, now_s, calls = Pool(), DemandWindow(), 0.0, []
    step_s = settings.release_hold_s / (len(loads) + 1)
    for turn in range(len(loads) * 12):
        for _ in range(30):
            _load(pool, loads[turn % len(loads)])  # what found no address waits, and takes what has come
            snapshot = pool.snapshot(settings, _hold(pool, window, settings, now_s))
            window.record_surplus(surplus_count(snapshot, settings), settings, now_s=now_s)
            decided = plan(snapshot, settings=settings)
            if not decided.actions:
                break
            calls.append(turn)
            before = len(pool.rows)
            pool.apply(decided.actions[0])
            if isinstance(decided.actions[0], ReleaseAddresses | ReleaseEni):
                window.record_release(before - len(pool.rows), settings, kept_count=None, now_s=now_s)
        _load(pool, loads[turn % len(loads)])
        now_s += step_s
    assert [turn for turn in calls if turn > 5 * (len(loads) + 1)] == []


def _hold(pool: Pool, window: DemandWindow, settings: PoolSettings, now_s: float) -> Hold:
    return Hold(
        window.stable_surplus(settings, kept_count=None, now_s=now_s),
        releasable=releasable(pool.records(), withheld=frozenset()),
    )


def _load(pool: Pool, count: int) -> None:
    """So many sandboxes run, densest ENI first; the others' addresses are free."""
    rows = sorted(pool.rows.values(), key=lambda row: (row.eni_id, int(row.address)))
    for number, row in enumerate(rows):
        owner = AttachmentKey(f"c-{int(row.address)}", "eth0") if number < count else None
        state = ASSIGNED if number < count else FREE
        pool.rows[row.address] = Address(row.address, row.eni_id, state, NOW, row.prefix, owner=owner)
