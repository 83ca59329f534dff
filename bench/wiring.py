"""`wire_2000_to_10`, `retire_2000_to_10`: wiring a sandbox on a host that has 2,000 of them, against one on a host with 10.

Two hosts in namespaces of this process take turns in blocks; nothing but the kernel and `KernelWiring` is in it.
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
    samples: dict[int, tuple[list[float], list[float]]] = {FEW: ([], []), MANY: ([], [])}
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
                    found = threads[count].submit(hosts[count].times, ROUNDS).result()
                    for into, times in zip(samples[count], found, strict=True):
                        into += times
        finally:
            for count, thread in threads.items():
                thread.submit(hosts[count].close).result()
    return [
        Figure(
            f"{what}_{MANY}_to_{FEW}",
            median(samples[MANY][index]) / median(samples[FEW][index]),
            "x",
            sample_count=BLOCKS * ROUNDS,
            note=f"{median(samples[MANY][index]):.2f} ms with {MANY}, {median(samples[FEW][index]):.2f} ms with {FEW}",
        )
        for index, what in enumerate(("wire", "retire"))
    ]
