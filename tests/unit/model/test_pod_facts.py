"""What a pod wants, by the annotations of its sandbox, and what an ADD does by what is known."""

from __future__ import annotations

from ipamd.model.branch import (
    CONFIG_SOURCE,
    FROM_API,
    MARK,
    NOBODY_MARKS,
    NONE,
    POD_ENI,
    REQUIRED,
    Decision,
    PodFacts,
    Way,
    Wish,
    decide,
    read_annotations,
)
from tests.table import each_of

API = {CONFIG_SOURCE: FROM_API}
GIVEN = {POD_ENI: "[{}]"}


@each_of(
    [
        # annotations, whether the policy is known -> wish, way
        (None, False, Wish.UNKNOWN, Way.REFUSE),
        (None, True, Wish.UNKNOWN, Way.REFUSE),
        ({}, False, Wish.UNMARKED, Way.POOL),
        ({}, True, Wish.OLDER, Way.REFUSE),
        (API, False, Wish.UNMARKED, Way.POOL),
        (API, True, Wish.OLDER, Way.REFUSE),
        (API | GIVEN, False, Wish.UNMARKED, Way.BRANCH),
        (API | GIVEN, True, Wish.OLDER, Way.BRANCH),
        (API | {MARK: REQUIRED}, False, Wish.YES, Way.WAIT),
        (API | {MARK: REQUIRED} | GIVEN, False, Wish.YES, Way.BRANCH),
        (API | {MARK: REQUIRED, POD_ENI: ""}, True, Wish.YES, Way.WAIT),
        (API | {MARK: NONE}, False, Wish.NO, Way.POOL),
        (API | {MARK: NONE}, True, Wish.NO, Way.POOL),
        (API | {MARK: NONE} | GIVEN, True, Wish.NO, Way.REFUSE),
        (API | {MARK: "Required"}, False, Wish.UNKNOWN, Way.REFUSE),
        (API | {MARK: ""} | GIVEN, False, Wish.UNKNOWN, Way.REFUSE),
        # No policy sees a pod of a file, and the controller does not annotate it there: what its file says of both is not believed.
        ({CONFIG_SOURCE: "file"}, False, Wish.NO, Way.POOL),
        ({CONFIG_SOURCE: "file"}, True, Wish.NO, Way.POOL),
        ({CONFIG_SOURCE: "http", MARK: REQUIRED}, True, Wish.NO, Way.POOL),
        ({CONFIG_SOURCE: "file"} | GIVEN, False, Wish.NO, Way.REFUSE),
    ]
)
def test_by_annotations(annotations: dict[str, str] | None, is_policy_known: bool, wish: Wish, way: Way) -> None:
    """I19: an address of the pool only for a pod that wants no groups, or where nobody marks pods; that is a condition."""
    facts = read_annotations(annotations, is_policy_known=is_policy_known)
    decision = decide(facts)
    assert (facts.wish, decision.way) == (wish, way)
    of_the_api = (annotations or {}).get(CONFIG_SOURCE) == FROM_API
    assert facts.is_of_pod == (wish is Wish.UNKNOWN and annotations is not None), "others' marks may be right"
    assert facts.is_marked == (of_the_api and wish in (Wish.YES, Wish.NO))
    assert (decision.condition == NOBODY_MARKS) == (wish is Wish.UNMARKED and way is Way.POOL)
    assert bool(decision.advice) == (way is Way.REFUSE)
    assert decision.why.isprintable()


@each_of(
    [
        (Wish.YES, "x", Way.BRANCH),
        (Wish.YES, "", Way.WAIT),
        (Wish.NO, "x", Way.REFUSE),
        (Wish.NO, "", Way.POOL),
        (Wish.UNMARKED, "x", Way.BRANCH),
        (Wish.UNMARKED, "", Way.POOL),
        (Wish.OLDER, "x", Way.BRANCH),
        (Wish.OLDER, "", Way.REFUSE),
        (Wish.UNKNOWN, "x", Way.REFUSE),
        (Wish.UNKNOWN, "", Way.REFUSE),
    ]
)
def test_every_case(wish: Wish, annotation: str, way: Way) -> None:
    """Each wish with and without an annotation: no case is left to chance."""
    assert decide(PodFacts(wish, "why", annotation)).way is way


def test_what_a_refusal_says() -> None:
    """What tells it, and the next step of whoever reads it (I14); a text of the pod's author is cut and made safe."""
    older = decide(read_annotations(API, is_policy_known=True))
    assert older == Decision(
        Way.REFUSE,
        "the pod has no annotation vpc-ipamd/pod-eni: it is older than the admission policy",
        "delete the pod once; its successor is marked",
    )
    silent = decide(PodFacts(Wish.UNKNOWN, "kubelet does not answer"))
    assert (silent.why, silent.advice[:5]) == ("kubelet does not answer", "retry")
    stranger = decide(read_annotations(API | {MARK: "\x1b[2J" * 100}, is_policy_known=False))
    assert len(stranger.why) < 200
    assert "\x1b" not in stranger.why
