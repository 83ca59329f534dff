"""The session that every command gets: kubectl, the API server behind `kubectl proxy`, and the operator's choices."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from kubectl_ipamd.api import Api
from kubectl_ipamd.cluster import ClusterNode, ClusterView, DaemonPod, read_cluster
from kubectl_ipamd.errors import CommandLineError, NoAnswerError
from kubectl_ipamd.fleet import Limits, NodeReading, read_fleet
from kubectl_ipamd.kubectl import Kubectl
from kubectl_ipamd.proxy import api_socket

OPTIONS = ("kubeconfig", "context", "cluster", "user", "server", "as")
"""Options of this program that are passed on to kubectl."""

NAMESPACE = "kube-system"

SELECTOR = "app.kubernetes.io/name=vpc-ipamd"
"""The label of the daemon's pods. Source: manifests/base/daemonset.yaml."""


@dataclass(frozen=True)
class Session:
    """The running `kubectl proxy` to the cluster, and the operator's choices.

    Args:
        namespace: the namespace of the daemon's pods.
        selector: the label selector of the daemon's pods.
        metrics_port: the daemons' port of metrics; 0: the port that the environment of each pod says.
        output: the form of the answer: table, wide or json.
    """

    kubectl: Kubectl
    api: Api
    namespace: str
    selector: str
    metrics_port: int
    limits: Limits
    output: str

    @property
    def own_options(self) -> tuple[str, ...]:
        """The options about the daemon's pods that differ from the defaults, for another command line of this program."""
        options = []
        if self.namespace != NAMESPACE:
            options.append(f"--namespace={self.namespace}")
        if self.selector != SELECTOR:
            options.append(f"--selector={self.selector}")
        if self.metrics_port:
            options.append(f"--metrics-port={self.metrics_port}")
        return tuple(options)

    @property
    def kubectl_words(self) -> tuple[str, ...]:
        """The words that begin a command line of kubectl for the same cluster."""
        return ("kubectl", *self.kubectl.options)

    @property
    def plugin_words(self) -> tuple[str, ...]:
        """The words that begin a command line of this program for the same cluster and the same pods."""
        return ("kubectl", "ipamd", *self.own_options, *self.kubectl.options)

    def cluster(self) -> ClusterView:
        """List the nodes and the daemons' pods. Raises: PluginError."""
        return read_cluster(self.api, namespace=self.namespace, selector=self.selector, metrics_port=self.metrics_port)

    def fleet(self) -> tuple[list[NodeReading], tuple[str, ...]]:
        """Read the figures of all nodes. Returns: the readings, and notes on what could not be read. Raises: PluginError."""
        view = self.cluster()
        return read_fleet(self.api, view.nodes.values(), self.limits), view.notes

    def node(self, view: ClusterView, name: str) -> ClusterNode:
        """Return a node by its name. Raises: CommandLineError if the cluster has no such node."""
        node = view.nodes.get(name)
        if node is None:
            raise CommandLineError(f"no node {name} has or should have a daemon; `kubectl ipamd status` lists those that do")
        return node


def pod_of(node: ClusterNode) -> DaemonPod:
    """Return the daemon's pod of a node. Raises: NoAnswerError if the node has none."""
    if node.pod is None:
        raise NoAnswerError(f"no pod of the daemon is on {node.name}")
    return node.pod


@contextmanager
def open_session(arguments: argparse.Namespace) -> Iterator[Session]:
    """Start `kubectl proxy`, yield a session with it, and end it. Raises: PluginError."""
    kubectl = Kubectl(arguments.kubectl, tuple(_kubectl_options(arguments)))
    with api_socket(kubectl) as path:
        yield Session(
            kubectl=kubectl,
            api=Api(path),
            namespace=arguments.namespace,
            selector=arguments.selector,
            metrics_port=arguments.metrics_port,
            limits=Limits(arguments.parallel, arguments.timeout, arguments.total_timeout),
            output=arguments.output,
        )


def _kubectl_options(arguments: argparse.Namespace) -> Iterator[str]:
    for name in OPTIONS:
        value = getattr(arguments, name)
        if value:
            yield f"--{name}={value}"
    for group in arguments.as_group:
        yield f"--as-group={group}"
