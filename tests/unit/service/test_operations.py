"""The table of operations: it is whole, and each state with each answer of EC2 leads to the state and the calls that a row says.

Calls are in their order; `left` is what there is at EC2 afterwards, and what pods may have of it. Rows say what one operation does;
when it is tried again, and what the pool makes of it, is in the files about the pool.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from ipamd.eni.operations import FAILPOINTS, GONE_AFTER_S, TABLE, Call, OnFailure, State, StateRule, state_of
from ipamd.eni.steps import UNANSWERED_MAX_S
from ipamd.model.cloud import DescribedEni, EniRequest
from ipamd.model.cloud_evidence import RECENT_S
from ipamd.model.eni import EniState
from ipamd.model.eni_tags import EniTags, description
from ipamd.model.errors import (
    CloudDeniedError,
    CloudError,
    CloudNotFoundError,
    DeviceIndexTakenError,
    EniLimitError,
    PoolEmptyError,
    SubnetExhaustedError,
    ThrottledError,
)
from ipamd.model.ids import EniId, InstanceId, SubnetId
from ipamd.model.intent import Assign, Create, Delete, DeleteReason, Operation, Unassign
from ipamd.model.pool_settings import PoolSettings
from tests.fakes.cloud import IDENTITY, PRIMARY, FakeEc2
from tests.fakes.node import FakeNode

BEGINNINGS = {State.ASKED, State.UNANSWERED, State.UNREPEATABLE, State.FOUND, State.WITHHELD}
BESIDE_THE_TABLE = {"growth.intent-opened", "growth.intent-closed", "growth.marked", "growth.host-ready", "release.intent-opened"}


def unanswered() -> CloudError:
    """An error that says nothing about what happened."""
    return CloudError("connection reset")


def refused(kind: type[CloudError] = CloudError) -> CloudError:
    """EC2 answered, and did nothing."""
    error = kind("refused")
    error.may_have_happened = False
    return error


@pytest.mark.parametrize("operation", TABLE, ids=str)
def test_every_state_leads_to_the_end(operation: object) -> None:
    """From each state where a run may begin; and what is in the table is reached."""
    rows = TABLE[operation]  # type: ignore[index]
    reached = set()
    for begun in BEGINNINGS & rows.keys():
        state, steps = begun, 0
        while state is not State.DONE:
            reached.add(state)
            state, steps = rows[state].then, steps + 1
            assert steps < len(State)
    assert reached == rows.keys()


def test_every_call_is_in_a_row() -> None:
    """No call is left over from a row that went; `test_every_row_is_carried_out` has the other direction."""
    assert {row.call for rows in TABLE.values() for row in rows.values()} == set(Call)


def test_every_row_is_carried_out(node: FakeNode) -> None:
    """The engine has a method for each."""
    assert node.provisioner.steps._methods.keys() == set(Call)


def test_every_failpoint_has_its_place() -> None:
    """Those that are in no row belong to the log of intents and to what comes after the table."""
    placed = {row.failpoint for rows in TABLE.values() for row in rows.values()} - {""}
    assert placed | BESIDE_THE_TABLE == set(FAILPOINTS)
    assert not placed & BESIDE_THE_TABLE


@pytest.mark.parametrize(
    ("error", "field"),
    [
        (refused(), "refused"),
        (refused(CloudDeniedError), "refused"),
        (refused(CloudNotFoundError), "missing"),
        (refused(ThrottledError), "throttled"),
        (unanswered(), "silence"),
    ],
)
def test_every_answer_has_its_column(error: CloudError, field: str) -> None:
    """Silence is no refusal (I11), and neither is throttling."""
    row = StateRule(Call.LOOK, State.DONE, **{field: OnFailure.GONE})  # type: ignore[arg-type]
    assert row.on(error) is OnFailure.GONE
    assert [row.on(other) for other in (refused(), unanswered()) if other.may_have_happened != error.may_have_happened] == [
        OnFailure.WAIT
    ]


@pytest.mark.parametrize("operation", TABLE, ids=str)
def test_silence_ends_nothing(operation: object) -> None:
    """I9, I11: no intent is closed and nothing undone because of an answer that was lost."""
    assert {row.silence for row in TABLE[operation].values()} <= {OnFailure.WAIT, OnFailure.GIVE_UP}  # type: ignore[index]


# Each state with each answer, carried out on a node of fakes

TOKEN, MADE = "token-1", EniId("eni-2")
SUBNET_BEFORE, TIMEOUTS_BEFORE = SubnetId("subnet-before"), (("UdpTimeout", 40),)
LOST, LOST_AND_DENIED = unanswered(), CloudDeniedError("the adapter's own repetition was denied")
LOST_AND_SLOW = ThrottledError("and throttled")
LOST_AND_DENIED.may_have_happened = LOST_AND_SLOW.may_have_happened = True
REFUSED, DENIED, SLOW, UNKNOWN = refused(), refused(CloudDeniedError), refused(ThrottledError), refused(CloudNotFoundError)
NO_ROOM, FULL, TAKEN = refused(SubnetExhaustedError), refused(EniLimitError), refused(DeviceIndexTakenError)

WORDS = {
    "create_eni": "create",
    "find_by_token": "find",
    "describe_eni": "describe",
    "attach_eni": "attach",
    "set_delete_on_termination": "mark",
    "detach_eni": "detach",
    "delete_eni": "delete",
    "assign_addresses": "assign",
    "unassign": "unassign",
    "describe_enis": "compare",
}
METHODS = {word: method for method, word in WORDS.items()}

MAKES = "attach mark describe"
"""What follows a creation."""

ENDS = "describe delete"
"""What follows an ENI that cannot be attached, and is not."""


class NotingEc2(FakeEc2):
    """Notes its calls in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.requests: list[EniRequest] = []

    def create_eni(self, request: EniRequest) -> DescribedEni:
        """See the port."""
        self.requests.append(request)
        return super().create_eni(request)

    def _call(self, method: str) -> None:
        self.asked.append(WORDS.get(method, method))
        super()._call(method)


@dataclass(frozen=True)
class Case:
    """`state` and `at_ec2`: what an earlier process left. `fail`: calls that EC2 does not do, with its answer; `lose`: calls that it
    does. Tries come `pauses_s` after the intent was opened and after each other; `then`, `calls`, `left` are of the last."""

    state: State
    then: State
    calls: str
    left: str
    at_ec2: str = ""
    fail: dict[str, CloudError] = field(default_factory=dict)
    lose: dict[str, CloudError] = field(default_factory=dict)
    pauses_s: tuple[float, ...] = (0.0,)
    differs: dict[str, Any] = field(default_factory=dict)

    @property
    def is_undone_later(self) -> bool:
        """Whether it is undone after a restart. That of a first run is said by the pool, which asked for it."""
        return self.then is State.DONE and DENIED in self.fail.values() and "is_first" not in self.differs

    def __str__(self) -> str:
        """A name for the test."""
        answers = [f"{call} {type(error).__name__}" for call, error in (self.fail | self.lose).items()]
        return " ".join([self.state.name, self.at_ec2, *answers, f"-> {self.then.name} {self.calls}"])


class Carrier:
    """Carries one operation out on a node with two addresses on its only ENI."""

    def __init__(self, run_dir: Path) -> None:
        self.ec2 = NotingEc2()
        self.node = FakeNode(run_dir, settings=PoolSettings(warm_ip_target=2), ec2=self.ec2)
        self.node.bring_up()
        self.steps, self.log = self.node.provisioner.steps, self.node.provisioner._log

    def make(self, at_ec2: str) -> Create:
        """What EC2 did for an earlier creation, and whether that was recorded. Returns: the creation."""
        tags = EniTags("test").of_new_eni(IDENTITY, created_at=self.node.clock.now(), token=TOKEN)
        creation = Create(SUBNET_BEFORE, 1, 3, 0, tags, ("sg-before",), TIMEOUTS_BEFORE)
        self.request = EniRequest(
            SUBNET_BEFORE,
            ("sg-before",),
            description(IDENTITY),
            tags,
            TOKEN,
            address_count=3,
            is_urgent=False,
            connection_tracking=TIMEOUTS_BEFORE,
        )
        if at_ec2:
            assert self.ec2.create_eni(self.request).eni_id == MADE
        if at_ec2 not in ("", "detached", "gone"):
            instance_id = InstanceId("i-other") if at_ec2 == "others'" else IDENTITY.instance_id
            self.ec2.attach_eni(MADE, instance_id=instance_id, device_index=1, network_card=0)
        if at_ec2 == "used":
            self.ec2.set_delete_on_termination(MADE, attachment_id=self.ec2.enis[MADE].attachment_id)
        if at_ec2 in ("used", "recorded"):
            eni = replace(self.node.enis.eni_of(self.ec2.enis[MADE], IDENTITY), created_by_us=True)
            self.node.enis.record(eni, self.ec2.enis[MADE])
            self.node.enis.routing.set_up(eni)
        if at_ec2 == "gone":
            del self.ec2.enis[MADE]
        return creation

    def carry_out(self, case: Case, operation: Operation, *, is_first: bool) -> tuple[State, str]:
        """Open the intent, and try as often as the case says. Returns: the state that is on disk, and the calls of the last try.

        The wall clock is set forward by two hours meanwhile: no age is measured with it.
        """
        leaving = self.node.datastore.eni(MADE) if operation == Delete(MADE, DeleteReason.RELEASED) else None
        held = None if leaving is None else replace(leaving, state=EniState.DETACHING, host_ready=False)
        self.log.open(operation, token=TOKEN, also=None if held is None else lambda uow: uow.put_eni(held))
        self.node.clock.step_wall(7200)
        self.ec2.fail = {METHODS[word]: [copy(error)] for word, error in case.fail.items()}
        self.ec2.lose = {METHODS[word]: [copy(error)] for word, error in case.lose.items()}
        for number, pause_s in enumerate(case.pauses_s):
            self.node.clock.advance(pause_s)
            self.ec2.asked = []
            if is_first and not number:
                with suppress(CloudError):
                    self.steps.run(self.log.all_open()[0], identity=IDENTITY, is_first=True)
            else:
                self.node.provisioner.recover_due()
        left = self.node.datastore.open_intents()
        if not left:
            return State.DONE, " ".join(self.ec2.asked)
        state = State.SETTLED if left[0].is_settled else state_of(left[0].operation, is_first=False)
        return state, " ".join(self.ec2.asked)

    def is_denial_said(self) -> bool:
        """Whether people are told that something cannot be given back."""
        return any(sentence.startswith("release") for sentence in self.node.health.conditions())

    def left(self) -> str:
        """What has become of the ENI at EC2, and of its record."""
        shown, known = self.ec2.enis.get(MADE), self.node.datastore.eni(MADE)
        there = "gone" if shown is None else "detached"
        if shown is not None and shown.instance_id:
            there = "attached" if shown.instance_id == IDENTITY.instance_id else "others'"
        if known is None:
            return there
        return f"{there} {'used' if known.state is EniState.ATTACHED else 'held'}"


@pytest.fixture
def carrier(tmp_path: Path) -> Iterator[Carrier]:
    """A node of fakes."""
    made = Carrier(tmp_path)
    yield made
    made.node.datastore.close()


S = State
CREATIONS = [
    # The first call: what EC2 answers is believed, what it does not answer is not.
    Case(S.ASKED, S.DONE, f"create {MAKES}", "attached used"),
    *(Case(S.ASKED, S.DONE, "create", "gone", fail={"create": error}) for error in (REFUSED, DENIED, NO_ROOM, FULL, SLOW)),
    Case(S.ASKED, S.UNANSWERED, "create", "gone", fail={"create": LOST}),
    Case(S.ASKED, S.UNANSWERED, "create", "detached", lose={"create": LOST}),
    Case(S.ASKED, S.UNANSWERED, "create", "detached", lose={"create": LOST_AND_DENIED}),
    Case(S.ASKED, S.UNANSWERED, "create", "detached", lose={"create": LOST_AND_SLOW}),
    # It may have made an ENI: its token gives that one again, its tag finds it, and nothing else says that there is none.
    Case(S.UNANSWERED, S.DONE, f"create {MAKES}", "attached used"),
    Case(S.UNANSWERED, S.DONE, f"create {MAKES}", "attached used", at_ec2="detached"),
    Case(S.UNANSWERED, S.DONE, "create mark", "attached used", at_ec2="attached"),
    *(
        Case(S.UNANSWERED, S.DONE, f"create find {MAKES}", "attached used", at_ec2="detached", fail={"create": error})
        for error in (REFUSED, DENIED, NO_ROOM, FULL)
    ),
    *(Case(S.UNANSWERED, S.UNREPEATABLE, "create find", "gone", fail={"create": one}) for one in (REFUSED, DENIED, NO_ROOM)),
    *(
        Case(S.UNANSWERED, S.UNANSWERED, "create", "detached", at_ec2="detached", fail={"create": error})
        for error in (SLOW, LOST, LOST_AND_DENIED)
    ),
    Case(S.UNREPEATABLE, S.DONE, f"find {MAKES}", "attached used", at_ec2="detached"),
    Case(S.UNREPEATABLE, S.UNREPEATABLE, "find", "gone", pauses_s=(2 * RECENT_S,)),
    Case(S.UNREPEATABLE, S.UNREPEATABLE, "find", "gone", pauses_s=(0.0, GONE_AFTER_S - 5)),
    Case(S.UNREPEATABLE, S.DONE, "find", "gone", pauses_s=(0.0, GONE_AFTER_S)),
    *(
        Case(S.UNREPEATABLE, S.UNREPEATABLE, "find", "detached", at_ec2="detached", fail={"find": error})
        for error in (REFUSED, DENIED, SLOW, LOST)
    ),
    # Its ENI is known: it goes on from where EC2 shows it. That it is not shown is believed after two looks.
    Case(S.FOUND, S.DONE, f"describe {MAKES}", "attached used", at_ec2="detached"),
    Case(S.FOUND, S.DONE, "describe mark", "attached used", at_ec2="attached"),
    Case(S.FOUND, S.DONE, "describe", "attached used", at_ec2="used"),
    Case(S.FOUND, S.FOUND, "describe", "detached", at_ec2="detached", fail={"describe": UNKNOWN}),
    Case(S.FOUND, S.FOUND, "describe", "detached", at_ec2="detached", fail={"describe": UNKNOWN}, pauses_s=(2 * RECENT_S,)),
    Case(S.FOUND, S.FOUND, "describe", "gone", at_ec2="gone", pauses_s=(0.0, GONE_AFTER_S)),
    Case(S.FOUND, S.FOUND, "describe", "gone", at_ec2="gone", pauses_s=(GONE_AFTER_S, GONE_AFTER_S - 5)),
    Case(S.FOUND, S.DONE, "describe", "gone", at_ec2="gone", pauses_s=(GONE_AFTER_S, GONE_AFTER_S)),
    *(
        Case(S.FOUND, S.FOUND, "describe", "detached", at_ec2="detached", fail={"describe": error}, pauses_s=(5000.0,))
        for error in (REFUSED, DENIED, SLOW, LOST)
    ),
    # Attach
    *(
        Case(S.ASKED, S.DONE, f"create attach {ENDS} compare", "gone", fail={"attach": error})
        for error in (REFUSED, DENIED, FULL)
    ),
    Case(S.ASKED, S.WITHHELD, f"create attach {ENDS} compare", "detached", fail={"attach": FULL, "delete": REFUSED}),
    Case(S.ASKED, S.FOUND, "create attach", "detached", fail={"attach": UNKNOWN}),
    Case(S.ASKED, S.FOUND, "create attach", "detached", fail={"attach": LOST}),
    Case(S.ASKED, S.FOUND, "create attach", "attached", lose={"attach": LOST}),
    Case(S.ASKED, S.FOUND, "create attach", "detached", fail={"attach": SLOW}),
    Case(S.ASKED, S.DONE, MAKES, "attached used", fail={"attach": SLOW}, pauses_s=(0.0, 2.0)),
    Case(S.ASKED, S.DONE, f"create attach compare {ENDS}", "gone", fail={"attach": TAKEN}),
    Case(S.ASKED, S.DONE, f"create attach compare {MAKES}", "attached used", fail={"attach": TAKEN}, differs={"moves_left": 1}),
    Case(S.FOUND, S.FOUND, "describe attach", "detached", "detached", fail={"attach": LOST}, pauses_s=(UNANSWERED_MAX_S - 1,)),
    Case(
        S.FOUND,
        S.DONE,
        f"describe attach {ENDS} compare",
        "gone",
        "detached",
        fail={"attach": LOST},
        pauses_s=(UNANSWERED_MAX_S,),
    ),
    # Attached: marked, and looked at; what sandboxes may use is never deleted.
    Case(S.ASKED, S.FOUND, "create attach mark", "attached", fail={"mark": LOST}),
    Case(S.ASKED, S.FOUND, "create attach mark", "attached", fail={"mark": SLOW}),
    Case(S.ASKED, S.DONE, "mark describe", "attached used", fail={"mark": SLOW}, pauses_s=(0.0, 2.0)),
    Case(S.ASKED, S.DONE, "create attach mark describe detach delete compare", "gone", fail={"mark": DENIED}),
    Case(S.ASKED, S.FOUND, f"create {MAKES}", "attached", fail={"describe": UNKNOWN}),
    Case(S.ASKED, S.FOUND, f"create {MAKES}", "attached", fail={"describe": LOST}),
    Case(S.ASKED, S.DONE, "describe", "attached used", fail={"describe": SLOW}, pauses_s=(0.0, 2.0)),
    Case(S.FOUND, S.FOUND, "describe mark", "attached used", at_ec2="recorded", fail={"mark": DENIED}),
    Case(
        S.FOUND, S.FOUND, "describe mark", "attached used", at_ec2="recorded", fail={"mark": LOST}, pauses_s=(UNANSWERED_MAX_S,)
    ),
]


@pytest.mark.parametrize("case", CREATIONS, ids=str)
def test_a_creation(carrier: Carrier, case: Case) -> None:
    """No ENI leaks (I9), none is made twice, none that sandboxes may use is deleted (I2), and one look proves no absence (I11).
    A repetition asks for the same with the same token."""
    creation = replace(carrier.make(case.at_ec2), **case.differs)
    if case.state is State.FOUND:
        creation = replace(creation, eni_id=MADE)
    elif case.state is State.UNREPEATABLE:
        creation = replace(creation, refused="InvalidParameter")
    then, calls = carrier.carry_out(case, creation, is_first=case.state is State.ASKED)
    assert (then, calls, carrier.left()) == (case.then, case.calls, case.left)
    assert all(request == carrier.request for request in carrier.ec2.requests), "what the intent names, whatever is chosen now"
    assert len(carrier.ec2.enis) <= 2


ALLOCATIONS = [
    Case(S.ASKED, S.DONE, "assign", "5 of 5"),
    *(
        Case(S.ASKED, S.DONE, "assign", "2 of 2", fail={"assign": error})
        for error in (REFUSED, DENIED, NO_ROOM, FULL, SLOW, UNKNOWN)
    ),
    Case(S.ASKED, S.UNANSWERED, "assign", "2 of 2", fail={"assign": LOST}),
    Case(S.ASKED, S.UNANSWERED, "assign", "2 of 5", lose={"assign": LOST}),
    Case(S.ASKED, S.DONE, "describe", "5 of 5", lose={"assign": LOST}, pauses_s=(0.0, 2.0)),
    Case(S.UNANSWERED, S.DONE, "describe", "2 of 2"),
    *(
        Case(S.UNANSWERED, S.UNANSWERED, "describe", "2 of 2", fail={"describe": error}, pauses_s=(5000.0,))
        for error in (REFUSED, DENIED, SLOW, LOST)
    ),
    Case(S.UNANSWERED, S.DONE, "describe compare", "2 of 2", fail={"describe": UNKNOWN}),
    Case(S.UNANSWERED, S.DONE, "", "2 of 2", differs={"eni_id": EniId("eni-of-others")}),
]


@pytest.mark.parametrize("case", ALLOCATIONS, ids=str)
def test_an_allocation(carrier: Carrier, case: Case) -> None:
    """Three addresses more: what an answer was lost for is read from the ENI, and never asked for twice (I9, I13)."""
    operation = replace(Assign(PRIMARY, 3), **case.differs)
    then, calls = carrier.carry_out(case, operation, is_first=case.state is State.ASKED)
    left = f"{carrier.node.datastore.counts().free} of {len(carrier.ec2.enis[PRIMARY].secondary_addresses)}"
    assert (then, calls, left) == (case.then, case.calls, case.left)


FIRST = {"is_first": True}
"""A first run, where nothing came before."""

HIDDEN = {"is_hidden": True}
"""Describe shows it as it was before EC2 had done what it was asked to."""

RETURNS = [
    Case(S.WITHHELD, S.SETTLED, "unassign", "1 of 1", differs=FIRST),
    *(
        Case(S.WITHHELD, S.DONE, "unassign", "2 of 2", fail={"unassign": error}, differs=FIRST)
        for error in (REFUSED, DENIED, SLOW, UNKNOWN)
    ),
    Case(S.WITHHELD, S.WITHHELD, "unassign", "2 of 2", fail={"unassign": LOST}, differs=FIRST),
    Case(S.WITHHELD, S.SETTLED, "unassign", "1 of 1"),
    *(
        Case(S.WITHHELD, S.WITHHELD, "unassign", "2 of 2", fail={"unassign": error}, pauses_s=(2 * RECENT_S,))
        for error in (REFUSED, SLOW, LOST, UNKNOWN)
    ),
    Case(S.WITHHELD, S.WITHHELD, "unassign", "2 of 2", fail={"unassign": DENIED}, pauses_s=(RECENT_S - 1,)),
    Case(S.WITHHELD, S.DONE, "unassign describe", "2 of 2", fail={"unassign": DENIED}, pauses_s=(RECENT_S,)),
    Case(S.WITHHELD, S.DONE, "unassign describe", "1 of 1", "gone", fail={"unassign": DENIED}, pauses_s=(RECENT_S,)),
]


@pytest.mark.parametrize("case", RETURNS, ids=str)
def test_a_return_of_an_address(carrier: Carrier, case: Case) -> None:
    """Nobody has it before EC2 has confirmed it (I7). It is anybody's again if nothing was done, and silence and throttling say
    nothing of earlier tries (I11)."""
    node = carrier.node
    address = min(row.address for row in node.datastore.addresses())
    if case.at_ec2 == "gone":
        carrier.ec2.unassign(PRIMARY, addresses=[address], prefixes=[])
    operation = Unassign(PRIMARY, frozenset({address}), frozenset())
    then, calls = carrier.carry_out(case, operation, is_first="is_first" in case.differs)
    left = f"{node.datastore.counts().total} of {len(carrier.ec2.enis[PRIMARY].secondary_addresses)}"
    assert (then, calls, left) == (case.then, case.calls, case.left)
    given = set()
    with suppress(PoolEmptyError):
        given.update(node.datastore.reserve(node.key(f"s{number}")).address for number in range(9))
    assert len(given) == node.datastore.counts().total - (then is State.WITHHELD)
    assert (address in given) is (then is State.DONE and not case.at_ec2)
    assert carrier.is_denial_said() is case.is_undone_later


RELEASES = [
    Case(S.WITHHELD, S.SETTLED, "describe detach delete", "gone", differs=FIRST),
    *(
        Case(S.WITHHELD, S.DONE, "describe detach", "attached used", fail={"detach": error}, differs=FIRST)
        for error in (REFUSED, DENIED, SLOW)
    ),
    *(
        Case(S.WITHHELD, S.DONE, "describe", "attached used", fail={"describe": one}, differs=FIRST)
        for one in (REFUSED, DENIED, SLOW)
    ),
    Case(S.WITHHELD, S.WITHHELD, "describe", "attached held", fail={"describe": LOST}, differs=FIRST),
    Case(S.WITHHELD, S.WITHHELD, "describe detach", "attached held", fail={"detach": LOST}, differs=FIRST),
    *(
        Case(S.WITHHELD, S.WITHHELD, "describe detach delete", "detached held", fail={"delete": error}, differs=FIRST)
        for error in (REFUSED, DENIED, SLOW, LOST)
    ),
    # Again: what was begun is ended, and what is not known to be undone stays nobody's.
    Case(S.WITHHELD, S.SETTLED, "describe detach delete", "gone"),
    Case(S.WITHHELD, S.SETTLED, "describe delete", "gone", at_ec2="detached"),
    Case(S.WITHHELD, S.SETTLED, "describe", "gone", at_ec2="gone"),
    *(
        Case(S.WITHHELD, S.WITHHELD, "describe detach", "attached held", fail={"detach": error}, pauses_s=(2 * RECENT_S,))
        for error in (REFUSED, SLOW, LOST)
    ),
    *(
        Case(S.WITHHELD, S.WITHHELD, "describe delete", "detached", "detached", fail={"delete": error}, pauses_s=(2 * RECENT_S,))
        for error in (REFUSED, DENIED, SLOW, LOST)
    ),
    Case(S.WITHHELD, S.WITHHELD, "describe detach", "attached held", fail={"detach": DENIED}, pauses_s=(RECENT_S - 1,)),
    Case(S.WITHHELD, S.DONE, "describe detach describe", "attached used", fail={"detach": DENIED}, pauses_s=(RECENT_S,)),
    Case(
        S.WITHHELD,
        S.WITHHELD,
        "describe detach describe",
        "detached held",
        "detached",
        fail={"detach": DENIED},
        differs=HIDDEN,
        pauses_s=(RECENT_S,),
    ),
]
DELETIONS = [
    Case(S.WITHHELD, S.DONE, ENDS, "gone", at_ec2="detached"),
    Case(S.WITHHELD, S.DONE, "describe detach delete", "gone", at_ec2="attached"),
    Case(S.WITHHELD, S.WITHHELD, "describe", "gone", at_ec2="gone"),
    Case(S.WITHHELD, S.DONE, "describe", "gone", at_ec2="gone", pauses_s=(GONE_AFTER_S,)),
    *(
        Case(S.WITHHELD, S.WITHHELD, "describe delete", "detached", at_ec2="detached", fail={"delete": error}, pauses_s=(5000.0,))
        for error in (REFUSED, DENIED, SLOW, LOST)
    ),
    # It has been taken into use after all: it stays, and goes with its instance.
    Case(S.WITHHELD, S.DONE, "describe", "attached used", at_ec2="used"),
    Case(S.WITHHELD, S.DONE, "describe mark", "attached used", at_ec2="recorded"),
    *(
        Case(S.WITHHELD, S.WITHHELD, "describe mark", "attached used", at_ec2="recorded", fail={"mark": error})
        for error in (REFUSED, DENIED, SLOW, LOST)
    ),
    Case(S.WITHHELD, S.DONE, "describe", "attached used", at_ec2="recorded", fail={"describe": UNKNOWN}),
]
LEAKS = [
    Case(S.WITHHELD, S.DONE, ENDS, "gone", at_ec2="detached"),
    Case(S.WITHHELD, S.DONE, "describe", "gone", at_ec2="gone"),
    Case(S.WITHHELD, S.DONE, "describe", "others'", at_ec2="others'"),
    Case(S.WITHHELD, S.DONE, "describe", "attached", at_ec2="attached"),
    Case(S.WITHHELD, S.WITHHELD, ENDS, "detached", at_ec2="detached", fail={"delete": REFUSED}),
    Case(S.WITHHELD, S.WITHHELD, ENDS, "detached", at_ec2="detached", fail={"delete": LOST}),
]
OF_ENIS = [
    (why, case)
    for why, cases in {
        DeleteReason.RELEASED: RELEASES,
        DeleteReason.UNATTACHED: DELETIONS,
        DeleteReason.USELESS: DELETIONS,
        DeleteReason.LEAKED: LEAKS,
    }.items()
    for case in cases
]


@pytest.mark.parametrize(("why", "case"), OF_ENIS, ids=str)
def test_a_deletion(carrier: Carrier, why: DeleteReason, case: Case) -> None:
    """An ENI that a sandbox has, or that has been taken into use, stays (I2). What EC2 may have begun is ended, not undone because of
    silence (I9, I11); what it has refused before it began serves again."""
    node, ec2 = carrier.node, carrier.ec2
    carrier.make("used" if why is DeleteReason.RELEASED else case.at_ec2)
    if why is DeleteReason.RELEASED and case.at_ec2 in ("detached", "gone"):
        shown = ec2.enis[MADE]
        ec2.detach_eni(shown.attachment_id)
        if case.at_ec2 == "gone":
            ec2.delete_eni(MADE)
        elif "is_hidden" in case.differs:
            ec2.described = {MADE: [shown]}
    operation = Delete(MADE, why)
    then, calls = carrier.carry_out(case, operation, is_first="is_first" in case.differs)
    assert (then, calls, carrier.left()) == (case.then, case.calls, case.left)
    known = node.datastore.eni(MADE)
    assert known is None or known.host_ready is (known.state is EniState.ATTACHED)
    assert carrier.is_denial_said() is case.is_undone_later
