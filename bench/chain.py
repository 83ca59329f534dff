"""Run a list of CNI plugins inside the node, as a runtime's libcni does: each plugin gets the result of the one before, and DEL runs
them in reverse.

A chain is {"cniVersion", "name", "plugins": [{"path": executable, "config": its entry in the conflist}]}. The plugins may be those of
any project. The whole chain is timed, because a pod waits for all of its plugins.
"""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.direct_call import PluginFailed
from bench.namespaces import FOLDER, make_all, netns_path, remove_all
from bench.network_config import IFNAME

Chain = dict[str, Any]

RETRY_S = 0.05
"""Pause before a refused ADD is repeated (`_add_again`). Ours: far shorter than kubelet's pauses of seconds, so that it hardly adds to
a time, and the same for every plugin."""

TEXT_MAX = 500


def chain_attach(*, chain: Chain, count: int, tag: str) -> list[str]:
    """Attach `count` sandboxes that stay, one after the other. Returns: their container IDs. Raises: PluginFailed."""
    ids = _container_ids(tag, count)
    make_all(ids)
    for container_id in ids:
        add(chain, container_id)
    return ids


def chain_cycles(*, chain: Chain, rounds: int, settle_s: float, tag: str) -> dict[str, list[float]]:
    """Do ADD and DEL `rounds` times, each with a namespace of its own and a pause after each call.

    Returns: "ADD" and "DEL" -> ms of the whole chain; "ADD first" and "DEL first" -> ms of its first plugin only. Raises:
    PluginFailed.
    """
    times: dict[str, list[float]] = {"ADD": [], "DEL": [], "ADD first": [], "DEL first": []}
    ids = _container_ids(tag, rounds)
    make_all(ids)
    try:
        for container_id in ids:
            for verb, call in (("ADD", add), ("DEL", delete)):
                call_times = call(chain, container_id)
                times[verb].append(call_times["whole"])
                times[f"{verb} first"].append(call_times["first"])
                time.sleep(settle_s)
    finally:
        remove_all(ids)
    return times


def chain_burst(*, chain: Chain, count: int, tag: str, deadline_s: float) -> dict[str, float]:
    """Attach `count` sandboxes at once, and then detach them at once. A refused ADD is repeated, as kubelet does.

    Returns: "s" -> seconds from the first exec to the last success; "refused" -> number of refused ADDs. Raises: PluginFailed if an
        ADD does not succeed within `deadline_s`, or a DEL is refused.
    """
    ids = _container_ids(tag, count)
    make_all(ids)
    give_up_at = time.monotonic() + deadline_s
    try:
        with ThreadPoolExecutor(count) as pool:
            began = time.monotonic()
            refusals = list(pool.map(lambda container_id: _add_again(chain, container_id, give_up_at)[1], ids))
            lasted_s = time.monotonic() - began
            list(pool.map(lambda container_id: delete(chain, container_id), ids))
        return {"s": lasted_s, "refused": sum(refusals)}
    finally:
        remove_all(ids)


def chain_first_add(*, chain: Chain, tag: str, deadline_s: float) -> float:
    """Repeat one ADD until it succeeds, and then detach the sandbox.

    Returns: the monotonic time of the success, in s. Raises: PluginFailed with the last refusal, if that takes longer than
    `deadline_s`.
    """
    ids = _container_ids(tag, 1)
    make_all(ids)
    try:
        served_at, _ = _add_again(chain, ids[0], time.monotonic() + deadline_s)
        delete(chain, ids[0])
        return served_at
    finally:
        remove_all(ids)


def _add_again(chain: Chain, container_id: str, give_up_at: float) -> tuple[float, int]:
    """Repeat an ADD until it succeeds, with a DEL after each refusal, as a runtime does.

    Returns: the monotonic time of the success in s, and the number of refusals. Raises: PluginFailed for a refusal after `give_up_at`.
    """
    refusals = 0
    while True:
        try:
            add(chain, container_id)
            return time.monotonic(), refusals
        except PluginFailed:
            if time.monotonic() > give_up_at:
                raise
            refusals += 1
            with suppress(PluginFailed):  # while the daemon is away, DEL may fail too; only the next ADD counts
                delete(chain, container_id)
            time.sleep(RETRY_S)


def add(chain: Chain, container_id: str) -> dict[str, float]:
    """Run ADD with each plugin in turn. Returns: ms of the "whole" chain and of its "first" plugin. Raises: PluginFailed."""
    result: dict[str, Any] | None = None
    started = time.perf_counter()
    first_ms = 0.0
    for index, plugin in enumerate(chain["plugins"]):
        result = json.loads(_call("ADD", chain, plugin, container_id, result))
        if index == 0:
            first_ms = (time.perf_counter() - started) * 1000
    whole_ms = (time.perf_counter() - started) * 1000
    _kept(container_id).write_text(json.dumps(result))  # for DEL, as a runtime keeps the result
    return {"whole": whole_ms, "first": first_ms}


def delete(chain: Chain, container_id: str) -> dict[str, float]:
    """Run DEL with each plugin in reverse order, with the result of ADD if there is one. Returns: as `add`. Raises: PluginFailed."""
    result = json.loads(_kept(container_id).read_text()) if _kept(container_id).exists() else None
    started = time.perf_counter()
    for plugin in reversed(chain["plugins"][1:]):
        _call("DEL", chain, plugin, container_id, result)
    first_began = time.perf_counter()
    _call("DEL", chain, chain["plugins"][0], container_id, result)
    ended = time.perf_counter()
    _kept(container_id).unlink(missing_ok=True)
    return {"whole": (ended - started) * 1000, "first": (ended - first_began) * 1000}


def _call(verb: str, chain: Chain, plugin: dict[str, Any], container_id: str, result: dict[str, Any] | None) -> str:
    """Run one plugin. Returns: its output. Raises: PluginFailed."""
    config = {**plugin["config"], "cniVersion": chain["cniVersion"], "name": chain["name"]}
    if result is not None:
        config["prevResult"] = result
    name = f"{container_id}.{Path(plugin['path']).name}"
    source, output = FOLDER / f"{name}.conf", FOLDER / f"{name}.out"
    source.write_text(json.dumps(config))
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, str(source), os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(output), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600),
        (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
    ]
    try:
        pid = os.posix_spawn(plugin["path"], [plugin["path"]], _environment(verb, container_id), file_actions=actions)
        _, status = os.waitpid(pid, 0)
        text = output.read_text(errors="replace")
    finally:
        source.unlink()
        output.unlink(missing_ok=True)
    if status:
        raise PluginFailed(f"{verb} {plugin['path']} {container_id}: wait status {status:#x}: {text[:TEXT_MAX]}")
    return text


def _environment(verb: str, container_id: str) -> dict[str, str]:
    pod = container_id.rstrip("0").rstrip("-")
    return {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "CNI_COMMAND": verb,
        "CNI_CONTAINERID": container_id,
        "CNI_NETNS": str(netns_path(container_id)),
        "CNI_IFNAME": IFNAME,
        "CNI_PATH": "/opt/cni/bin:/usr/lib/cni",
        "CNI_ARGS": f"IgnoreUnknown=1;K8S_POD_NAMESPACE=bench;K8S_POD_NAME={pod};K8S_POD_INFRA_CONTAINER_ID={container_id}",
    }


def _kept(container_id: str) -> Path:
    return FOLDER / f"{container_id}.result"


def _container_ids(tag: str, count: int) -> list[str]:
    """Return container IDs of 64 characters, the length of CRI's sandbox IDs."""
    return [f"{tag}-{number}-".ljust(64, "0") for number in range(count)]
