"""Lists of ENIs that the probe reads page by page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from ipamd.probe.calls import NO_ANSWER, PAGES_MAX, Calls
from tests.fakes.clock import FakeClock


@pytest.mark.parametrize(("page_count", "code", "count"), [(1, "", 1), (PAGES_MAX, "", PAGES_MAX), (PAGES_MAX + 1, NO_ANSWER, 0)])
def test_a_part_of_a_list_does_not_pass_for_the_whole(page_count: int, code: str, count: int) -> None:
    """A place would seem free, and left-overs gone, because the ENI is on a page that was not read (I11)."""

    def send(api: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        assert api == "DescribeNetworkInterfaces"
        number = int(params.get("NextToken", "1"))
        page: dict[str, Any] = {"NetworkInterfaces": [{"NetworkInterfaceId": f"eni-{number}"}]}
        if number < page_count:
            page["NextToken"] = str(number + 1)
        return page

    clock = FakeClock()
    answer = Calls(send, clock, clock.advance).list_enis("the instance", {"attachment.instance-id": "i-1"})
    assert (answer.code, len(answer.enis()), answer.ok) == (code, count, not code)
