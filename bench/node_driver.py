"""The driver: a process inside the node that does the container runtime's part. It makes namespaces, executes CNI plugins and measures
times.

    python -m bench.node_driver        one JSON job per line on standard input, one JSON answer per line on standard output

It runs in the node, so that a plugin is executed as by a runtime (posix_spawn, environment, configuration on standard input), and no
part of the lab adds to the time from exec to exit. The answer to a failed job is {"error": text}, and the driver continues.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench.chain import chain_attach, chain_burst, chain_cycles, chain_first_add
from bench.direct_call import PluginFailed, first_served
from bench.namespaces import FOLDER, make_all, netns_path, remove_all
from bench.network_config import CONFIGS, IFNAME

RETRY_S = 0.1
"""Pause before a refused ADD is repeated in `storm`. Ours: far shorter than kubelet's pauses of seconds, so that it hardly adds to the
measured time."""

POLL_S = 0.001


def cycles(*, plugins: dict[str, str], rounds: int, settle_s: float, tag: str, names_pods: bool = False) -> dict[str, Any]:
    """Do ADD and DEL with each plugin in turn, `rounds` times, each with a namespace of its own.

    Args:
        plugins: path of an executable -> kind of configuration, of CONFIGS or `configure`. The plugin that begins changes with each
            round.
        settle_s: pause after every operation, so that background work of one plugin is not in the other's time.
        names_pods: whether each call has a pod name in CNI_ARGS, which is the container ID.
    Returns: path -> {"ADD": ms list, "DEL": ms list, "ids": container IDs}.
    """
    times: dict[str, Any] = {path: {"ADD": [], "DEL": [], "ids": []} for path in plugins}
    work = [[(path, _container_id(tag, number, path)) for path in plugins] for number in range(rounds)]
    names = [container_id for turn in work for _, container_id in turn]
    make_all(names)
    try:
        for number, turn in enumerate(work):
            first = number % len(turn)
            for verb in ("ADD", "DEL"):
                for path, container_id in turn[first:] + turn[:first]:
                    call = partial(_run_all, verb, path, plugins[path], [container_id], names_pods=names_pods)
                    times[path][verb].append(_timed(call))
                    time.sleep(settle_s)
            for path, container_id in turn:
                times[path]["ids"].append(container_id)
    finally:
        remove_all(names)
    return times


def bursts(*, plugins: dict[str, str], rounds: int, count: int, settle_s: float, tag: str) -> dict[str, list[float]]:
    """Start `count` ADDs at once with each plugin in turn, `rounds` times. The DELs and pauses between are not timed.

    Returns: path -> ms from the first exec to the last exit, for each round.
    """
    times: dict[str, list[float]] = {path: [] for path in plugins}
    for number in range(rounds):
        for path, kind in plugins.items():
            ids = [_container_id(tag, number * count + index, path) for index in range(count)]
            make_all(ids)
            try:
                times[path].append(_timed(partial(_run_all, "ADD", path, kind, ids)))
                _run_all("DEL", path, kind, ids)
            finally:
                remove_all(ids)
            time.sleep(settle_s)
    return times


def attach(*, path: str, count: int, tag: str, names_pods: bool = False) -> list[str]:
    """Attach `count` sandboxes that stay, one after the other; `names_pods` as in `cycles`. Returns: their container IDs."""
    ids = [_container_id(tag, number, path) for number in range(count)]
    make_all(ids)
    for container_id in ids:
        _run_all("ADD", path, "vpc", [container_id], names_pods=names_pods)
    return ids


def detach(*, path: str, ids: Sequence[str], names_pods: bool = False, settle_s: float = 0.0) -> None:
    """Detach attached sandboxes, one after the other with a pause after each, and remove their namespaces."""
    for container_id in ids:
        _run_all("DEL", path, "vpc", [container_id], names_pods=names_pods)
        time.sleep(settle_s)
    remove_all(ids)


def storm(*, path: str, count: int, tag: str, deadline_s: float) -> dict[str, Any]:
    """Attach `count` sandboxes at once. A refused ADD is repeated, as kubelet does.

    Returns: "started" and "ended" (monotonic times in s), "refusals" (their number), "ids" (container IDs). Raises: PluginFailed for a
        refusal after `deadline_s`.
    """
    ids = [_container_id(tag, number, path) for number in range(count)]
    make_all(ids)
    started = time.monotonic()
    running = {_spawn("ADD", path, "vpc", container_id): container_id for container_id in ids}
    waiting: list[tuple[float, str]] = []
    refusals = 0
    while running or waiting:
        while waiting and waiting[0][0] <= time.monotonic():
            container_id = waiting.pop(0)[1]
            running[_spawn("ADD", path, "vpc", container_id)] = container_id
        pid, status = os.waitpid(-1, os.WNOHANG) if running else (0, 0)
        if pid == 0:
            time.sleep(POLL_S)
            continue
        container_id = running.pop(pid)
        if status:
            refusals += 1
            if time.monotonic() - started > deadline_s:
                raise PluginFailed(_output(container_id))
            waiting.append((time.monotonic() + RETRY_S, container_id))
    return {"started": started, "ended": time.monotonic(), "refusals": refusals, "ids": ids}


def configure(*, kind: str, more: dict[str, Any]) -> None:
    """Add a kind of configuration: that of our plugin, with the keys `more`, which a runtime would add."""
    (FOLDER / f"{kind}.conf").write_text(json.dumps({**CONFIGS["vpc"], **more}))


def _run_all(verb: str, path: str, kind: str, container_ids: Sequence[str], *, names_pods: bool = False) -> None:
    running = {_spawn(verb, path, kind, name, pod=name if names_pods else ""): name for name in container_ids}
    failed = []
    while running:
        pid, status = os.waitpid(-1, 0)
        container_id = running.pop(pid)
        if status:
            failed.append(f"{verb} {path} {container_id}: wait status {status:#x}: {_output(container_id)}")
    if failed:
        raise PluginFailed("; ".join(failed[:3]))


def _spawn(verb: str, path: str, kind: str, container_id: str, *, pod: str = "") -> int:
    environment = {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "CNI_COMMAND": verb,
        "CNI_CONTAINERID": container_id,
        "CNI_NETNS": str(netns_path(container_id)),
        "CNI_IFNAME": IFNAME,
        "CNI_PATH": "/usr/lib/cni",
    } | ({"CNI_ARGS": f"K8S_POD_NAMESPACE=bench;K8S_POD_NAME={pod}"} if pod else {})
    output = str(FOLDER / f"{container_id}.out")
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, str(FOLDER / f"{kind}.conf"), os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600),
        (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
    ]
    return os.posix_spawn(path, [path], environment, file_actions=actions)


def _output(container_id: str) -> str:
    return (FOLDER / f"{container_id}.out").read_text(errors="replace")[:500]


def _timed(function: Callable[[], None]) -> float:
    started = time.perf_counter()
    function()
    return (time.perf_counter() - started) * 1000


def _container_id(tag: str, number: int, path: str) -> str:
    """Return a container ID of 64 characters, the length of CRI's sandbox IDs."""
    return f"{tag}-{Path(path).name}-{number}-".ljust(64, "0")


JOBS: dict[str, Callable[..., Any]] = {
    "cycles": cycles,
    "configure": configure,
    "bursts": bursts,
    "attach": attach,
    "detach": detach,
    "storm": storm,
    "first_served": first_served,
    "chain_attach": chain_attach,
    "chain_cycles": chain_cycles,
    "chain_burst": chain_burst,
    "chain_first_add": chain_first_add,
}


def main() -> None:
    """Serve jobs until standard input ends."""
    FOLDER.mkdir(exist_ok=True)
    for kind, config in CONFIGS.items():
        (FOLDER / f"{kind}.conf").write_text(json.dumps(config))
    for line in sys.stdin:
        job = json.loads(line)
        try:
            answer: dict[str, Any] = {"result": JOBS[job.pop("job")](**job)}
        except Exception as exc:  # noqa: BLE001  # reported to the caller
            answer = {"error": f"{type(exc).__name__}: {exc}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
