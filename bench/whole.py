"""`add_whole_*`, `del_whole_*`, `burst30*`: the whole time for which a runtime waits for our plugin, compared with Debian's Go `ptp`
with `host-local`.

110 other sandboxes are attached. Our plugin and the reference are called in turn. There is a pause after each call for two reasons:
calls are cold, as on a real node; and the time of one plugin does not include work that the other left to the kernel. (Our daemon
deletes links after the reply to DEL.)
"""

from __future__ import annotations

from bench.figures import Figure
from bench.samples import median, spread
from bench.scale import Scale
from bench.stage import REFERENCE_PATH, Stage, plugin_label

SETTLE_S = 0.04
"""Pause after each operation. Ours: twice the time that the kernel takes to delete a link."""

NOT_ALIKE = {"ADD": "", "DEL": "; ptp deletes the link inside DEL, ours goes within a second of the reply"}
"""Verb -> difference between the plugins that a reader of the ratio must know."""

BURST_COUNT = 30
BURST_SETTLE_S = 0.3
"""Pause between bursts, in which the kernel removes thirty links and namespaces."""


def measure(stage: Stage, scale: Scale) -> list[Figure]:
    """Time single ADDs and DELs, from exec to exit."""
    stage.job("cycles", plugins=stage.plugins, rounds=2, settle_s=SETTLE_S, tag="warm-up")
    times = stage.job("cycles", plugins=stage.plugins, rounds=scale.whole_rounds, settle_s=SETTLE_S, tag="whole")
    reference = times.pop(REFERENCE_PATH)
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
        for path, samples in times.items()
        for verb in ("ADD", "DEL")
    ]


def measure_burst(stage: Stage, scale: Scale) -> list[Figure]:
    """Time 30 ADDs that are started at once, until the last one's exit."""
    times = stage.job(
        "bursts",
        plugins=stage.plugins,
        rounds=scale.burst_rounds + 1,
        count=BURST_COUNT,
        settle_s=BURST_SETTLE_S,
        tag="burst",
    )
    seconds = {path: [ms / 1000 for ms in rounds[1:]] for path, rounds in times.items()}  # without the first round, a warm-up
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
