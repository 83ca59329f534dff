"""`wire_2000_to_10`, `retire_2000_to_10`: wiring a sandbox on a host that has 2,000 of them, against one on a host with 10.

Two hosts in namespaces of this process take turns in blocks; nothing but the kernel and `KernelWiring` is in it. The kernel's own
work grows, too: each route takes memory of each CPU, and each message about a link looks for its peer's namespace among all. So the
reference is how a bare pair with two routes grows, in turn with ours.
"""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

from bench.figures import Figure
from bench.kernel_wiring import Host

FEW, MANY = 10, 2000
BLOCKS, ROUNDS = 4, 25


def measure() -> list[Figure]:
    """Wire the residents, then take turns. Raises: PermissionError unless root."""
    samples: dict[int, tuple[list[float], ...]] = {FEW: ([], [], [], []), MANY: ([], [], [], [])}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as few, ThreadPoolExecutor(1) as many:
        threads = {FEW: few, MANY: many}
        hosts = {}
        for count, thread in threads.items():  # a host lives in its thread
            place = Path(folder) / str(count)
            place.mkdir()
            hosts[count] = thread.submit(Host, place).result()
            thread.submit(hosts[count].wire_residents, count).result()
        try:
            for block in range(BLOCKS):
                for count in (FEW, MANY) if block % 2 == 0 else (MANY, FEW):
                    ours = threads[count].submit(hosts[count].times, ROUNDS).result()
                    bare = threads[count].submit(hosts[count].bare_times, ROUNDS).result()
                    for into, times in zip(samples[count], [*ours, *bare], strict=True):
                        into += times
        finally:
            for count, thread in threads.items():
                thread.submit(hosts[count].close).result()
    growth = [median(many) / median(few) for many, few in zip(samples[MANY], samples[FEW], strict=True)]
    return [
        Figure(
            f"{what}_{MANY}_to_{FEW}",
            growth[index],
            "x",
            growth[index + 2],
            "a bare pair with two routes",
            sample_count=BLOCKS * ROUNDS,
            note=f"{median(samples[MANY][index]):.2f} ms with {MANY}, {median(samples[FEW][index]):.2f} ms with {FEW}",
        )
        for index, what in enumerate(("wire", "retire"))
    ]
