"""What the steps of the demo share: the lab, its nodes, the observers, and operations on many pods at once.

A few threads per node run and remove pods, as a kubelet does; one failure does not stop the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial

from lab.demo.ledger import AddressLedger
from lab.demo.node import DemoNode, Pod
from lab.demo.observer import Observer
from lab.demo.progress import Progress
from lab.errors import LabError
from lab.lab import IPV6_CIDR, Lab
from lab.node.errors import NodeError
from lab.vpc.family import IPV4, IPV6, Family
from lab.vpc.interfaces import Delays
from lab.vpc.model import Address, EniAttached, VpcEvent
from lab.vpc.state import Vpc

NODES = ("node-a", "node-b")
IPV6_NODE = "node-c"
EVERY_NODE = (*NODES, IPV6_NODE)
HOST = "host-a"
INSTANCE_TYPE, ENI_LIMIT, ADDRESSES_PER_ENI = "m5.xlarge", 4, 15  # EC2 user guide, "IP addresses per network interface"
ATTACH_DELAY_S = 1.0  # ours, because: what `vpc-lab up` takes; EC2's own delay is 1 to 5 s
PODS_PER_NODE = 20
WORKERS_PER_NODE = 4  # ours, because: several at once, as the kubelet does, and not more than two cores can use
PING_WORKERS = 4
PING_TIMEOUT_S = 5.0  # ours, because: answers come in milliseconds; on a busy machine a first ARP may take a second or two

Ask = tuple[str, str, Sequence[Address]]  # who asks (node or host), its network namespace ("" for a host), whom: of one family


class DemoContext:
    """Shared by all steps. `enter` builds the lab into `stack`; closing that removes it."""

    def __init__(self, *, lab_name: str, progress: Progress, stack: ExitStack) -> None:
        self.lab_name = lab_name
        self.progress = progress
        self.kubelets = AddressLedger()
        self.observer = Observer(AddressLedger())
        self._aside: list[Future[Pod]] = []  # pods that the runtime is starting while the story goes on
        self.datastore_lost_at: dict[str, float] = {}  # by node, monotonic
        self._stack = stack
        self._lab: Lab | None = None
        self._nodes: tuple[DemoNode, DemoNode, DemoNode] | None = None

    @property
    def lab(self) -> Lab:
        """The lab. Raises: NodeError before `enter`."""
        if self._lab is None:
            raise NodeError("the lab is not up")
        return self._lab

    @property
    def every_node(self) -> tuple[DemoNode, DemoNode, DemoNode]:
        """All nodes. Raises: NodeError before `enter`, because a loop over no node would prove nothing."""
        if self._nodes is None:
            raise NodeError("the lab has no nodes yet")
        return self._nodes

    @property
    def nodes(self) -> tuple[DemoNode, DemoNode]:
        """The two nodes whose sandboxes have IPv4 addresses. Raises: NodeError before `enter`."""
        first, second, _ = self.every_node
        return first, second

    @property
    def ipv6_node(self) -> DemoNode:
        """The node whose sandboxes have IPv6 addresses. Raises: NodeError before `enter`."""
        return self.every_node[-1]

    def enter(self) -> None:
        """Build the lab and start to watch the nodes. Raises: LabError."""
        lab = Lab(
            name=self.lab_name,
            nodes=EVERY_NODE,
            hosts=[HOST],
            instance_type=INSTANCE_TYPE,
            vpc=Vpc(delays=Delays(attach_s=ATTACH_DELAY_S), ipv6_cidr=IPV6_CIDR),
        )
        self._lab = self._stack.enter_context(lab)
        lab.add_internet()
        first, second = (self._node(name, IPV4) for name in NODES)
        self._nodes = (first, second, self._node(IPV6_NODE, IPV6))
        self._stack.callback(self.observer.stop)
        for node in lab.nodes.values():
            self.observer.watch(node)
        lab.vpc.subscribe(self._show)

    def _node(self, name: str, family: Family) -> DemoNode:
        return DemoNode(self.lab.node(name), region=self.lab.vpc.region, ledger=self.kubelets, family=family)

    def leave(self) -> None:
        """Remove the lab."""
        self._stack.close()

    @property
    def pods(self) -> list[Pod]:
        """All pods that run, by node and name."""
        return [pod for node in self.every_node for pod in node.pods]

    def run_pods(self, wanted: Sequence[tuple[DemoNode, str]], *, what: str = "sandboxes up") -> list[str]:
        """Run pods on their nodes, a few at a time on each; the failures in words."""
        counter = self.progress.counter(what, len(wanted))

        def run(node: DemoNode, name: str) -> None:
            node.run_pod(name)
            counter.one_more()

        return self._on_each_node([(node, partial(run, node, name)) for node, name in wanted])

    def run_aside(self, node: DemoNode, name: str) -> None:
        """Begin to run a pod; the story goes on meanwhile. The lab is not removed before that has ended."""
        pool = self._stack.enter_context(ThreadPoolExecutor(max_workers=1))
        self._aside.append(pool.submit(node.run_pod, name))

    def ended_aside(self) -> list[str]:
        """Of the pods that were begun aside, those that are up or refused, in words."""
        return [str(future.exception() or f"{future.result().name} is up") for future in self._aside if future.done()]

    def join_aside(self) -> tuple[list[Pod], list[str]]:
        """Wait for the pods that were begun aside, as long as the runtime does: those that came up, and the failures in words."""
        came, failures = [], []
        for future in self._aside:
            try:
                came.append(future.result())
            except LabError as exc:
                failures.append(str(exc))
        self._aside.clear()
        return came, failures

    def remove_pods(self, pods: Sequence[Pod], *, what: str = "sandboxes removed") -> list[str]:
        """Remove pods, a few at a time on each node; the failures in words."""
        counter = self.progress.counter(what, len(pods))
        node_of = {node.name: node for node in self.every_node}

        def remove(pod: Pod) -> None:
            node_of[pod.node].remove_pod(pod)
            counter.one_more()

        return self._on_each_node([(node_of[pod.node], partial(remove, pod)) for pod in pods])

    def silent(self, asks: Iterable[Ask]) -> tuple[int, list[str]]:
        """Ask who answers: how many pairs were tried, and each that got no answer, in words."""

        def ask(item: Ask) -> tuple[int, list[str]]:
            place, netns, targets = item
            source = (self.lab.node(place), netns) if netns else place
            answers = self.lab.ping(source=source, targets=targets, timeout_s=PING_TIMEOUT_S)
            name = f"{place} {netns.rpartition('/')[2]}".strip()
            return len(answers), [f"{target} does not answer {name}" for target, answered in answers.items() if not answered]

        with ThreadPoolExecutor(max_workers=PING_WORKERS) as pool:
            results = list(pool.map(ask, asks))
        return sum(count for count, _ in results), [line for _, lines in results for line in lines]

    def across(self, *, sources_per_node: int = PODS_PER_NODE) -> list[Ask]:
        """The questions from pods of each node to every pod of the other."""
        first, second = (node.pods for node in self.nodes)
        return [
            (pod.node, pod.netns_path, [other.address for other in others])
            for pods, others in ((first, second), (second, first))
            for pod in pods[:sources_per_node]
        ]

    def from_host(self) -> list[Ask]:
        """The question from the plain host to every pod of the two nodes."""
        return [(HOST, "", [pod.address for node in self.nodes for pod in node.pods])]

    def _on_each_node(self, jobs: Sequence[tuple[DemoNode, Callable[[], None]]]) -> list[str]:
        failures: list[str] = []

        def do(job: Callable[[], None]) -> None:
            try:
                job()
            except LabError as exc:
                failures.append(str(exc))

        with ExitStack() as stack:
            pools = {node.name: stack.enter_context(ThreadPoolExecutor(max_workers=WORKERS_PER_NODE)) for node in self.every_node}
            futures = [pools[node.name].submit(do, job) for node, job in jobs]
            try:
                for future in futures:
                    future.result()
            except BaseException:
                for future in futures:
                    future.cancel()  # Ctrl-C: what is under way ends, the rest does not begin
                raise
        return failures

    def _show(self, event: VpcEvent) -> None:
        """Listener of the VPC: an ENI that appears is worth a line."""
        if isinstance(event, EniAttached) and event.eni.attachment is not None and event.eni.attachment.device_index:
            interface, count = f"eth{event.eni.attachment.device_index}", len(event.eni.secondary_addresses)
            self.progress.say(f"{event.instance_name}: EC2 attached {event.eni.eni_id} as {interface} with {count} addresses")


def brief(problems: Sequence[str], *, most: int = 3) -> str:
    """The first few of many sentences, and how many more there are."""
    more = f"; and {len(problems) - most} more" if len(problems) > most else ""
    return "; ".join(problems[:most]) + more
