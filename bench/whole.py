"""`add_whole_*`, `del_whole_*`, `burst30*`: what the container runtime waits for, beside Debian's Go `ptp` with `host-local`.

110 other sandboxes are attached. Our plugin and the reference take turns. After each call there is a pause: calls are cold as in life,
and work that one leaves for the kernel (ours deletes its links after the reply to DEL) is not counted to the other.
"""

from __future__ import annotations

from bench.figures import Figure
from bench.samples import median, spread
from bench.scale import Scale
from bench.stage import REFERENCE_PATH, Stage, plugin_label

SETTLE_S = 0.04
"""After each operation. Ours: twice what the kernel takes to delete a link."""

NOT_ALIKE = {"ADD": "", "DEL": "; ptp deletes the link inside DEL, ours goes within a second of the reply"}
"""What a ratio does not say."""

BURST_COUNT = 30
BURST_SETTLE_S = 0.3
"""Between bursts: thirty links and namespaces are torn down."""


def measure(stage: Stage, scale: Scale) -> list[Figure]:
    """Time single ADDs and DELs, exec to exit."""
    stage.job("cycles", plugins=stage.plugins, rounds=2, settle_s=SETTLE_S, tag="warm-up")
    found = stage.job("cycles", plugins=stage.plugins, rounds=scale.whole_rounds, settle_s=SETTLE_S, tag="whole")
    reference = found.pop(REFERENCE_PATH)
    return [
        Figure(
            f"{verb.lower()}_whole_{plugin_label(path)}",
            median(samples[verb]),
            "ms",
            median(reference[verb]),
            "Go ptp + host-local",
            scale.whole_rounds,
            f"{spread(samples[verb])}; {SETTLE_S * 1000:.0f} ms between calls{NOT_ALIKE[verb]}",
        )
        for path, samples in found.items()
        for verb in ("ADD", "DEL")
    ]


def measure_burst(stage: Stage, scale: Scale) -> list[Figure]:
    """Time 30 ADDs started at once, to the last one's exit."""
    found = stage.job(
        "bursts",
        plugins=stage.plugins,
        rounds=scale.burst_rounds + 1,
        count=BURST_COUNT,
        settle_s=BURST_SETTLE_S,
        tag="burst",
    )
    seconds = {path: [ms / 1000 for ms in rounds[1:]] for path, rounds in found.items()}  # the first one warms up
    reference = seconds.pop(REFERENCE_PATH)
    return [
        Figure(
            "burst30" if plugin_label(path) == "interpreted" else f"burst30_{plugin_label(path)}",
            median(samples),
            "s",
            median(reference),
            "30 x Go ptp + host-local at once",
            scale.burst_rounds,
            spread(samples),
        )
        for path, samples in seconds.items()
    ]
