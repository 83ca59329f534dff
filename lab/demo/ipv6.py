"""The demo's third node, whose sandboxes have IPv6 addresses of a /80: whom they reach, as whom, and what a lost daemon changes."""

from __future__ import annotations

from lab.demo.checks import Verdict
from lab.demo.context import HOST, DemoContext, brief
from lab.demo.crash import attachment_problems, start_again
from lab.demo.node import DemoNode, Pod
from lab.fabric import talk
from lab.fabric.internet import OUTSIDE_HOST_6
from lab.node.kernel_view import read_kernel
from lab.vpc.family import IPV6, pool_of
from lab.vpc.model import Address

PODS = 6
READY_TIMEOUT_S = 30.0

READY = "IPv6: the daemon is ready with one /80 on the primary ENI, and no other ENI"
ADDRESSES = f"IPv6: {PODS} sandboxes run, each with its own address of that /80"
WITHIN = "IPv6: each sandbox reaches every other, and a host of the VPC reaches all"
OUTSIDE = "IPv6: the outside sees each sandbox as itself"
EGRESS = "IPv6: hosts that have IPv4 alone are reached as the node"
SURVIVED = "IPv6: kill -9 changes no address, and no packet is lost for long"
PROMISES = (READY, ADDRESSES, WITHIN, OUTSIDE, EGRESS, SURVIVED)


def show(context: DemoContext, verdict: Verdict) -> None:
    """Run the sandboxes and let them speak to everybody; then the same once more after `kill -9`."""
    node = context.ipv6_node
    node.daemon.wait_status(lambda status: bool(status["ready"]), what="ready", timeout_s=READY_TIMEOUT_S)
    enis = context.lab.vpc.enis_of(node.lab_node.instance_id)
    prefixes = [prefix for eni in enis for prefix in pool_of(eni, IPV6)]
    verdict(READY, len(enis) == len(prefixes) == 1, f"{len(enis)} ENI, {', '.join(map(str, prefixes)) or 'no prefix'}")

    failures = context.run_pods([(node, f"{node.name}-pod-{number:02}") for number in range(PODS)])
    addresses = {pod.address for pod in node.pods}
    strange = [f"{one} is of no /80" for one in addresses if not any(one in prefix for prefix in prefixes)]
    is_complete = len(addresses) == PODS and not (failures or strange)
    verdict(ADDRESSES, is_complete, brief([*failures, *strange]) or ", ".join(sorted(map(str, addresses))[:2]) + ", ...")

    tried, silent = _ask_each_other(context, node)
    verdict(WITHIN, tried == PODS**2 and not silent, brief(silent) or f"{tried} pings answered")
    with talk.Servers() as servers:
        _speak(context, node, servers, verdict)

    before = {pod.sandbox_id: pod.address for pod in node.pods}
    node.daemon.kill()
    _, took_s = start_again(context, node)
    problems = attachment_problems(node)
    tried, silent = _ask_each_other(context, node)
    same = {key: veth.address for key, veth in read_kernel(node.lab_node).wired.items()}
    problems += [f"{key[:13]} lost {address}" for key, address in before.items() if same.get(key) != str(address)]
    told = f"ready after {took_s:.1f} s, {len(before)} wired as before, {tried} pings answered"
    verdict(SURVIVED, tried == PODS**2 and not (problems or silent), brief([*problems, *silent]) or told)


def _ask_each_other(context: DemoContext, node: DemoNode) -> tuple[int, list[str]]:
    """Each sandbox asks all others, and the host all of them."""
    everybody = [pod.address for pod in node.pods]
    asks = [(node.name, pod.netns_path, [one for one in everybody if one != pod.address]) for pod in node.pods]
    return context.silent([*asks, (HOST, "", everybody)])


def _speak(context: DemoContext, node: DemoNode, servers: talk.Servers, verdict: Verdict) -> None:
    """Ask servers outside, and on IPv4 alone: they tell whom they see."""
    lab, host = context.lab, context.lab.primary_address(HOST)
    servers.add("outside", lab.internet.outside.path, address=OUTSIDE_HOST_6)
    servers.add("host-v4", lab.hosts[HOST].path, address=host)
    outside_4 = lab.internet.add_address(10)
    servers.add("outside-v4", lab.internet.outside.path, address=outside_4)
    own = lab.primary_address(node.name)
    wrong = [problem for pod in node.pods for problem in _wrong(node, pod, OUTSIDE_HOST_6, pod.address)]
    verdict(OUTSIDE, not wrong, brief(wrong) or f"{OUTSIDE_HOST_6} saw {len(node.pods)} addresses of the /80")
    public = lab.internet.associate(own)
    wrong = [
        problem
        for pod in node.pods
        for target, seen_as in ((host, own), (outside_4, public))
        for problem in _wrong(node, pod, target, seen_as)
    ]
    verdict(EGRESS, not wrong, brief(wrong) or f"{host} saw {own}, {outside_4} its public address {public}")


def _wrong(node: DemoNode, pod: Pod, target: Address, seen_as: Address) -> list[str]:
    """What is wrong with an answer over UDP or TCP, in words."""
    path = node.lab_node.netns_path(pod.netns_path)
    heard = {"TCP" if tcp else "UDP": talk.ask(path, target, tcp=tcp) for tcp in (False, True)}
    return [
        f"{pod.name} asked {target} by {how} and was seen as {answer.seen_as if answer else 'nobody'}, not {seen_as}"
        for how, answer in heard.items()
        if answer is None or answer.seen_as != seen_as
    ]
