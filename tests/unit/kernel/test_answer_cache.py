"""Parsed netlink bodies are remembered while they are in surveys, and dropped after that."""

from __future__ import annotations

from collections.abc import Iterable

from ipamd.kernel import answers, survey, uapi
from ipamd.kernel.answer_cache import SPARE_COUNT, AnswerCache
from ipamd.kernel.netlink import Message, text_attribute

LINK_COUNT = 5
MOST = 1000


class CountingReader:
    """Parses a body to its text, and counts."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, body: bytes) -> str:
        self.count += 1
        return body.decode()


class Kernel:
    """Answers each dump: links from `links`, and no routes and rules."""

    shorter = None

    def __init__(self) -> None:
        self.links: list[bytes] = []

    def dump(self, message: Message) -> list[bytes]:
        """Return the bodies of one dump."""
        return list(self.links) if message.kind == uapi.RTM_GETLINK else []


def bodies(numbers: Iterable[int]) -> list[bytes]:
    """One body for each number."""
    return [b"%d" % number for number in numbers]


def link_body(index: int, *, flags: int) -> bytes:
    """An RTM_NEWLINK body."""
    return answers.LINK.pack(0, 0, index, flags, 0) + text_attribute(uapi.IFLA_IFNAME, f"link{index}")


def test_a_body_is_parsed_once():
    """Dumps of a quiet node have the same bodies."""
    reader = CountingReader()
    cache = AnswerCache(reader, most=MOST)
    assert [cache(b"1"), cache(b"2"), cache(b"1")] == ["1", "2", "1"]
    assert reader.count == 2


def test_other_bodies_are_dropped_once_they_are_many():
    """A few stay, because other readers than the survey need them."""
    reader = CountingReader()
    cache = AnswerCache(reader, most=MOST)
    kept = bodies(range(10))
    for body in bodies(range(SPARE_COUNT + 2 * len(kept))):
        cache(body)
    cache.keep(kept)
    assert len(cache) == SPARE_COUNT + 2 * len(kept)
    cache(b"more")
    cache.keep(kept)
    assert len(cache) == len(kept)
    before = reader.count
    assert [cache(body) for body in kept] == [body.decode() for body in kept]
    assert reader.count == before


def test_never_more_than_the_bound_are_remembered():
    """A host may have more routes of its own than ours."""
    cache = AnswerCache(CountingReader(), most=MOST)
    for body in bodies(range(3 * MOST)):
        assert cache(body) == body.decode()
        assert len(cache) <= MOST


def test_links_that_change_again_and_again_are_not_all_remembered():
    """Each pod that comes and goes leaves some ten bodies behind."""
    kernel = Kernel()
    for flags in range(10 * SPARE_COUNT):
        kernel.links = [link_body(index, flags=flags) for index in range(1, LINK_COUNT + 1)]
        survey.survey(kernel, veth_prefix="eni")
    assert len(survey.read_link) <= SPARE_COUNT + 3 * LINK_COUNT
