"""The recordings on which alerts are tried (tests/heavy): as they are written they are read, and none is missing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.recordings.expected import EXPECTED, EXTENDED_S, ON_MADE_FLEETS
from tests.recordings.series import SERIES, Recording, Value, decode, encode, every, extended, read, write
from tests.recordings.troubles import SCENARIOS
from tests.unit.manifests import monitoring

QUIET = {"idle", "packed", "packed-without-spare", "packed-to-max-pods", "idle-ipv6", "packed-prefixes", "branch-idle"}


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([1.0], "1"),
        ([0.0, 0.0, 0.0, 5.0], "0+0x2 5"),
        ([None, None, 2.0, 3.0, 4.0], "_x2 2+1x2"),
        ([4.0, 2.0, 0.0, None], "4-2x2 _x1"),
        ([1.5, 1.25, 7.0], "1.5 1.25 7"),
        ([1795601585.84, 1795601585.84, 1795601585.84], "1795601585.84+0x2"),
    ],
)
def test_values_are_read_as_they_are_written(values: list[Value], text: str) -> None:
    """In promtool's own notation."""
    assert encode(values) == text
    assert decode(text) == values


def test_what_is_no_series_is_refused() -> None:
    """With the term that is none."""
    with pytest.raises(ValueError, match="1x is no term"):
        decode("1 1x")


def _made(series: Mapping[str, list[Value]], *, steady: int) -> Recording:
    count = len(next(iter(series.values())))
    return Recording("made", "up", 15, steady, 1, [1] * count, [0] * count, dict(series))


def test_a_steady_state_goes_on_as_it_was() -> None:
    """Gauges have their values again, counters and ages go on by their steps; nothing else is extended."""
    series: dict[str, list[Value]] = {"ipamd_ready": [0.0, 1.0, 0.0], "ipamd_defects_total": [1.0, 2.0, 5.0]}
    longer = extended(_made(series, steady=2), until_s=75)
    assert longer.series == {"ipamd_ready": [0, 1, 0, 1, 0], "ipamd_defects_total": [1, 2, 5, 6, 9]}
    assert (longer.count, longer.pods, longer.up) == (5, [0] * 5, [1] * 5)
    short = _made(series, steady=0)
    assert extended(short, until_s=75) is short


def test_a_file_has_the_same_bytes_for_the_same_values(tmp_path: Path) -> None:
    """So that a recording that is written again is no change."""
    made = _made({'ipamd_addresses{state="free"}': [1.0, None, 3.0]}, steady=1)
    path = write(made, tmp_path)
    before = path.read_bytes()
    assert read(path) == made
    assert write(read(path), tmp_path).read_bytes() == before


def test_every_recording_is_made_and_expected() -> None:
    """Each has a file, a scenario that makes it, and its alerts; the file says what the scenario says."""
    scenarios = {one.name: (one.what, one.steady, one.speed) for one in SCENARIOS}
    files = {read(path).name: read(path) for path in every()}
    assert set(files) == set(scenarios) == set(EXPECTED)
    for name, recording in files.items():
        assert (recording.what, recording.steady, recording.speed) == scenarios[name]
        assert {len(values) for values in recording.series.values()} == {recording.count}
        assert recording.speed == 1 or "ccelerated" in recording.what
    assert sum(path.stat().st_size for path in every()) < 300_000
    assert all(path.parent == SERIES for path in every())


def test_every_alert_fires_on_a_recording() -> None:
    """On real trouble, none on made-up series; quiet nodes raise none, and no series is too short for an alert."""
    fired = {name for names in EXPECTED.values() for name in names.split()}
    assert {f"VpcIpamd{name}" for name in fired} | ON_MADE_FLEETS == {rule["alert"] for rule in monitoring.rules()}
    assert {EXPECTED[name] for name in QUIET} == {""}
    longest = max(int(rule["for"][:-1]) * {"m": 60, "h": 3600}[rule["for"][-1]] for rule in monitoring.rules() if "for" in rule)
    assert longest * 2 <= EXTENDED_S
