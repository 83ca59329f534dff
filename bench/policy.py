"""`add_policy`: an ADD on a node with a policy agent, compared with the sum of an ADD on a node without an agent and of the agent's
own answer. `del_agent_dead`: a DEL on the node after its agent was killed, compared with a DEL on the node without an agent.

Both nodes name links by pod. They are called in turn in blocks, with a pause after each call, so that all calls are cold. The time is
the daemon's part of the call. The agent is the lab's stand-in, in Python. Its own answer is timed by a separate client, for links that
no daemon made. No two pods are replicas of each other, so the agent must load programs for each.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack

import grpc

from bench import plugin_exec
from bench.crowded import BLOCKS
from bench.figures import Figure, slowness
from bench.plugin import PYTHON
from bench.samples import median, spread
from bench.scale import Scale
from bench.stage import BenchError, Stage
from bench.whole import SETTLE_S
from lab.node.daemon import PLUGIN_PATH
from lab.node.policy_agent import PolicyAgent
from lab.node.policy_agent_process import SOCKET, host_veth

INSTANCE_TYPE = "c5.18xlarge"
OFF = {"MINIMUM_IP_TARGET": "300", "WARM_IP_TARGET": "1", "VPC_IPAMD_POD_VETH_NAMES": "true"}
ON = OFF | {"NETWORK_POLICY_ENFORCING_MODE": "strict"}
ANSWER_S = 5.0


def measure(scale: Scale) -> list[Figure]:
    """Measure both nodes and the agent in turn. Raises: NodeError, BenchError."""
    samples: dict[str, list[float]] = {"off": [], "on": [], "agent": []}
    rounds = scale.whole_rounds // BLOCKS
    with ExitStack() as stack:
        stages = {
            name: stack.enter_context(Stage(name=f"bench-{name}", instance_type=INSTANCE_TYPE, daemon_env=settings))
            for name, settings in (("off", OFF), ("on", ON))
        }
        agent_process = PolicyAgent(stages["on"].node)
        agent_process.start()
        for stage in stages.values():
            _adds(stage, rounds=2, tag="warm-up")
        for number in range(BLOCKS):
            for name in ("off", "on") if number % 2 == 0 else ("on", "off"):
                samples[name] += _adds(stages[name], rounds=rounds, tag=f"block-{number}")
            samples["agent"] += _answers(stages["on"], range(number * rounds, (number + 1) * rounds))
        dels = _dels(stages, agent_process, rounds=rounds)
    commands = {"bare": plugin_exec.bare_interpreter(PYTHON)}
    bare = plugin_exec.medians_ms(commands, environment={}, rounds=scale.exec_rounds)["bare"]
    off, agent = median(samples["off"]), median(samples["agent"])
    note = f"{spread(samples['on'])}; without it {off:.2f} ms, the agent {agent:.2f} ms; {SETTLE_S * 1000:.0f} ms between calls"
    reference_is = "an ADD without it and the agent's answer"
    count = len(samples["on"])
    return [
        Figure("add_policy", median(samples["on"]), "ms", off + agent, reference_is, count, note, slowness(bare)),
        Figure(
            "del_agent_dead",
            median(dels["on"]),
            "ms",
            median(dels["off"]),
            "a DEL without a policy agent",
            len(dels["on"]),
            f"the daemon's part; {spread(dels['on'])}; without it {spread(dels['off'])}",
        ),
    ]


def _adds(stage: Stage, *, rounds: int, tag: str) -> list[float]:
    """Do ADD and DEL in turn. Returns: the daemon's part of each ADD, in ms."""
    plugins = {PLUGIN_PATH: "vpc"}
    ids = stage.job("cycles", plugins=plugins, rounds=rounds, settle_s=SETTLE_S, tag=tag, names_pods=True)[PLUGIN_PATH]["ids"]
    lines = stage.requests("ADD", ids)
    if len(lines) != rounds or any(line["code"] for line in lines):
        raise BenchError(f"{rounds} ADDs were made, and not as many are in the daemon's log")
    return [line["ms"] for line in lines]


def _dels(stages: Mapping[str, Stage], agent: PolicyAgent, *, rounds: int) -> dict[str, list[float]]:
    """Attach pods to both nodes, kill the agent, and detach the pods in turn in blocks.

    Returns: node -> the daemon's part of each DEL, in ms.
    """
    parts: dict[str, list[float]] = {name: [] for name in stages}
    ids = {
        name: stage.job("attach", path=PLUGIN_PATH, count=rounds * BLOCKS, tag="outlives", names_pods=True)
        for name, stage in stages.items()
    }
    agent.kill()
    for number in range(BLOCKS):
        for name in sorted(stages, reverse=bool(number % 2)):
            block = ids[name][number * rounds : (number + 1) * rounds]
            stages[name].job("detach", path=PLUGIN_PATH, ids=block, names_pods=True, settle_s=SETTLE_S)
            parts[name] += [line["ms"] for line in stages[name].requests("DEL", block)]
    return parts


def _answers(stage: Stage, numbers: range) -> list[float]:
    """Request filters from the agent for pods that are not the daemon's. Returns: the time of each answer, in ms."""
    pods = [f"alone{number}-0" for number in numbers]
    stage.node.netns.ip([f"link add {host_veth('bench', pod, prefix='eni')} type veth peer name {pod}" for pod in pods])
    took_ms = []
    with grpc.insecure_channel(f"unix:{stage.node.root}{SOCKET}") as channel:
        ask = channel.unary_unary("/rpc.NPBackend/EnforceNpToPod", None, None)
        grpc.channel_ready_future(channel).result(ANSWER_S)
        for pod in pods:
            fields = enumerate((pod, "bench", "strict"), 1)
            request = b"".join(bytes([8 * number + 2, len(text)]) + text.encode() for number, text in fields)
            began = time.perf_counter()
            answer = ask(request, timeout=ANSWER_S)
            took_ms.append((time.perf_counter() - began) * 1000)
            if answer != b"\x08\x01":
                raise BenchError(f"the policy agent refused {pod}")
            time.sleep(SETTLE_S)
    return took_ms
