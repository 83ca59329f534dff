"""Statistics of timings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.samples import covered, median, percentile, spread

TIMES = st.lists(st.floats(min_value=0, max_value=1e6), min_size=1, max_size=300)


def test_median_of_an_even_number_lies_between_the_middle_two():
    """One slow sample among four does not move the median beyond its neighbours."""
    assert median([1.0, 2.0, 4.0, 1000.0]) == 3.0


def test_p99_of_two_hundred_is_the_third_worst():
    """Nearest rank: two of 200 samples lie above p99."""
    assert percentile([float(number) for number in range(1, 201)], 0.99) == 198.0


def test_p99_of_few_samples_is_the_worst():
    """With under a hundred samples p99 is not flattered by interpolation."""
    assert percentile([1.0] * 59 + [50.0], 0.99) == 50.0


@given(samples=TIMES, share=st.floats(min_value=0.01, max_value=1.0))
def test_a_percentile_is_a_sample_with_enough_samples_at_or_below_it(samples, share):
    """The definition of the nearest rank, and nothing smaller will do."""
    found = percentile(samples, share)
    assert found in samples
    assert sum(sample <= found for sample in samples) >= share * len(samples)
    assert sum(sample < found for sample in samples) < share * len(samples)


@pytest.mark.parametrize("share", [0.0, -0.1, 1.01, 99.0])
def test_a_share_outside_its_range_is_refused(share):
    """99 instead of 0.99 is a defect of the caller, not the worst sample."""
    with pytest.raises(ValueError, match="share"):
        percentile([1.0], share)


@pytest.mark.parametrize("function", [median, lambda samples: percentile(samples, 0.5)])
def test_no_samples_is_an_error(function):
    """A measurement that measured nothing has no figure."""
    with pytest.raises(ValueError, match="no samples"):
        function([])


def test_spread_names_the_middle_half_and_the_worst():
    """What a reader needs to judge the noise."""
    assert spread([1.0, 2.0, 3.0, 4.0]) == "middle half 1.00-3.00, worst 4.00"


def test_covered_counts_overlaps_once_and_gaps_not_at_all():
    """Two calls at a time take as long as the longer; waiting between calls is not EC2's."""
    assert covered([(0.0, 2.0), (1.0, 3.0), (5.0, 6.0), (5.2, 5.4)]) == pytest.approx(4.0)


def test_covered_of_nothing_is_nothing():
    """No calls, no critical path."""
    assert covered([]) == 0.0


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=20))
def test_covered_equals_counting_seconds(pieces):
    """The union of whole-second intervals has as many seconds as are in any of them."""
    intervals = [(float(start), float(start + length)) for start, length in pieces]
    seconds = {second for start, length in pieces for second in range(start, start + length)}
    assert covered(intervals) == pytest.approx(len(seconds))
