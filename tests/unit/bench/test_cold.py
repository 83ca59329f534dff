"""The critical path of EC2's waits, from a call log."""

import pytest

from bench.cold import ATTACH_S, LATENCY_S, Storm, critical_path_s, measure
from bench.idle import status_mib
from lab.vpc.calls import Call


def call(at: float, api: str = "CreateNetworkInterface", outcome: str = "OK") -> Call:
    """A call that arrived at `at`."""
    return Call(at, "i-1", api, {}, outcome)


def test_calls_in_a_row_add_up_and_the_gap_between_is_not_ec2s():
    """Two calls a second apart cost two latencies."""
    assert critical_path_s([call(0.0), call(1.0)], until=9.0) == pytest.approx(2 * LATENCY_S)


def test_an_attachment_counts_until_the_interface_is_there():
    """Describes meanwhile cost nothing more."""
    calls = [call(0.0, "AttachNetworkInterface"), call(0.5, "DescribeNetworkInterfaces"), call(1.0, "DescribeNetworkInterfaces")]
    assert critical_path_s(calls, until=9.0) == pytest.approx(LATENCY_S + ATTACH_S)


def test_a_refused_attachment_costs_only_its_call():
    """EC2 attaches nothing then."""
    calls = [call(0.0, "AttachNetworkInterface", "AttachmentLimitExceeded")]
    assert critical_path_s(calls, until=9.0) == pytest.approx(LATENCY_S)


def test_what_ec2_does_after_the_last_sandbox_is_up_does_not_count():
    """Refilling the warm pool is not on the path."""
    assert critical_path_s([call(0.0, "AttachNetworkInterface")], until=1.0) == pytest.approx(1.0)


def test_sizes_are_read_from_a_status_file():
    """kB become MiB; other lines are passed over."""
    assert status_mib("Name:\tpython\nVmHWM:\t  2048 kB\nVmRSS:\t   1536 kB\nThreads:\t9\n") == {"VmHWM": 2.0, "VmRSS": 1.5}


def test_the_middle_storm_is_shown_with_all_ratios():
    """Neither the luckiest nor the unluckiest run is the figure; both are in the note."""
    calls = [call(0.0), call(1.0)]
    storms = [Storm(0.0, ended, refusals, calls, [], ended / 2, 1.0) for ended, refusals in ((2.0, 1), (9.0, 2), (3.0, 3))]
    figure, ready = measure(storms)
    assert (ready.value, ready.reference) == (1.5, 1.0)
    assert ready.note.startswith("above EC2's: 0.00, 0.50, 3.50 s")
    assert ready.met
    assert (figure.value, figure.reference) == (3.0, pytest.approx(2 * LATENCY_S))
    assert figure.note.startswith("ratios 8.00, 12.00, 36.00; 2 CreateNetworkInterface; 3 ADDs refused")
