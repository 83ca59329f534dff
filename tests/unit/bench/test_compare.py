"""The comparison of two daemons: ratios of medians, their intervals, and what the command line accepts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.compare import HERE, main, ratios, restart_ratios


def block(total_ms: float) -> dict[str, Any]:
    """One block of two calls that take equally long."""
    call = {"wire": total_ms / 2, "other": total_ms / 2, "total": total_ms}
    return {"ADD": [call, call], "DEL": [call, call], "whole": {"ADD": [total_ms + 1], "DEL": [total_ms + 1]}}


def test_a_ratio_is_that_of_the_medians() -> None:
    """A block that was disturbed does not move it."""
    pairs = [(block(2.0), block(3.0)) for _ in range(9)] + [(block(2.0), block(90.0))]
    by_name = {ratio.name: ratio for ratio in ratios([pairs], "ADD")}
    assert set(by_name) == {"ADD wire", "ADD other", "ADD total", "ADD with the plugin"}
    total = by_name["ADD total"]
    assert total.ratio == pytest.approx(1.5)
    assert total.low <= 1.5 <= total.high


def test_the_interval_is_wider_where_blocks_differ() -> None:
    """It comes from the blocks and not from single calls: calls of one block share a disturbance."""
    calm = ratios([[(block(2.0), block(2.0)) for _ in range(12)]], "DEL")[-2]
    uneasy = ratios([[(block(2.0), block(1.5 + number % 4 / 3)) for number in range(12)]], "DEL")[-2]
    assert calm.high - calm.low == 0
    assert uneasy.high - uneasy.low > 0


def test_the_interval_is_wider_where_starts_differ() -> None:
    """Pairs of one start share how its daemon lies in memory, so many of them do not make up for few starts."""
    times = [2.0 + number / 10 for number in range(4)]
    one_start = ratios([[(block(2.0), block(ms)) for ms in times * 10]], "ADD")[-2]
    starts = ratios([[(block(2.0), block(ms)) for _ in range(10)] for ms in times], "ADD")[-2]
    assert starts.high - starts.low > one_start.high - one_start.low


def test_a_step_that_one_side_lacks_counts_as_nothing() -> None:
    """A checkout may have a step more."""
    before, after = block(2.0), block(2.0)
    for call in after["ADD"]:
        call["policy"] = 0.5
    by_name = {ratio.name: ratio for ratio in ratios([[(before, after)]], "ADD")}
    assert "ADD policy" in by_name
    assert by_name["ADD policy"].before_ms == 0


def test_restarts_are_compared_by_the_time_to_the_first_answer() -> None:
    """In ms, as the calls are."""
    pairs = [({"DEL": 0.4, "ADD": 0.5}, {"DEL": 0.4, "ADD": 0.6}) for _ in range(11)]
    deleted, added = restart_ratios([pairs])
    assert (deleted.name, deleted.ratio) == ("restart to first DEL", 1.0)
    assert added.before_ms == pytest.approx(500)
    assert added.low == added.high == pytest.approx(1.2)


@pytest.mark.parametrize("arguments", [["--before-env", "NAME"], ["--before", str(HERE / "docs")]])
def test_wrong_arguments_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Before any daemon is started."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert Path(arguments[1]).name in capsys.readouterr().err
