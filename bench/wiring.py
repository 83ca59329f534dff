"""`wire_2000_to_10`, `retire_2000_to_10`: wiring a sandbox on a host with 2,000 sandboxes, compared with a host with 10.

The two hosts are namespaces of this process, and are measured in turn in blocks. Only the kernel and `KernelWiring` are measured. The
kernel's own work grows with the number of sandboxes too: each route needs memory of each CPU, and for each message about a link the
kernel searches all namespaces for that of the link's peer. So the reference is the growth of a bare veth pair with two routes,
measured in turn with our wiring.
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
    """Wire the sandboxes that stay, and measure both hosts in turn. Raises: PermissionError without root."""
    samples: dict[int, tuple[list[float], ...]] = {FEW: ([], [], [], []), MANY: ([], [], [], [])}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as few, ThreadPoolExecutor(1) as many:
        threads = {FEW: few, MANY: many}
        hosts = {}
        for count, thread in threads.items():  # a host must be used in one thread only
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
