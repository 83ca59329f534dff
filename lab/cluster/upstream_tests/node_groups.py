"""The part of CloudFormation that the tests call: stacks that make a node group of one node.

A template is not interpreted. Each template of the tests makes one node group, and its parameters say which. For a stack the lab
launches a node that stands ready: an instance of the wanted type in the wanted subnet, which becomes a node of the cluster with the
labels of the node group.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from lab.cluster.upstream_tests.query_api import Action, Tree
from lab.ec2.query import Params
from lab.vpc.errors import Ec2Error
from lab.vpc.model import OWNER_ID, ROLE
from lab.vpc.state import Vpc

log = logging.getLogger(__name__)

ENDPOINT_VARIABLE = "AWS_ENDPOINT_URL_CLOUDFORMATION"
NAMESPACE = "http://cloudformation.amazonaws.com/doc/2010-05-15/"
MANAGED_LABEL = "eks.amazonaws.com/nodegroup"
"""Label of the nodes of a managed node group. Its value is the node group's name."""

_NODE_LABELS = re.compile(r"--node-labels=([^ ']+)")
END_TIMEOUT_S = 300.0


@dataclass
class _Stack:
    name: str
    node: str
    status: str = "CREATE_IN_PROGRESS"
    thread: threading.Thread | None = field(default=None, repr=False)


class NodeGroups:
    """The stacks. Concurrency: any thread may call the actions. `launch` and `terminate` are called by threads of their own."""

    def __init__(
        self,
        vpc: Vpc,
        spares: Mapping[str, str],
        *,
        launch: Callable[[str, Mapping[str, str]], None],
        terminate: Callable[[str], None],
    ) -> None:
        """Make the object; nothing is launched yet.

        Args:
            spares: the nodes that stand ready: name -> instance type.
            launch: makes a spare node a node of the cluster with these labels, and returns when Kubernetes has it.
            terminate: terminates such a node.
        """
        self._vpc, self._launch, self._terminate = vpc, launch, terminate
        self._spares = dict(spares)
        self._lock = threading.Lock()
        self._stacks: dict[str, _Stack] = {}

    @property
    def actions(self) -> Mapping[str, Action]:
        """The actions of the API."""
        return {"CreateStack": self._create, "DescribeStacks": self._describe, "DeleteStack": self._delete}

    def close(self) -> None:
        """Wait until nothing is launched or terminated any more."""
        for stack in self._stacks.values():
            if stack.thread is not None:
                stack.thread.join(END_TIMEOUT_S)

    def _create(self, params: Params) -> Tree:
        name = params.required("StackName")
        entries = params.structures("Parameters.member")
        wanted = {entry.required("ParameterKey"): entry.text("ParameterValue") or "" for entry in entries}
        with self._lock:
            if name in self._stacks and self._stacks[name].status != "DELETE_COMPLETE":
                raise Ec2Error("AlreadyExistsException", f"Stack [{name}] already exists")
            node = self._take(wanted)
            stack = self._stacks[name] = _Stack(name, node)
        labels = labels_of(wanted)
        self._start(stack, lambda: self._launch(node, labels), done="CREATE_COMPLETE", failed="CREATE_FAILED")
        return {"StackId": _stack_id(self._vpc, name)}

    def _take(self, wanted: Mapping[str, str]) -> str:
        for node, instance_type in self._spares.items():
            if instance_type == wanted["NodeInstanceType"] and wanted["Subnets"] == self._vpc.instance(node).subnet_id:
                del self._spares[node]
                return node
        where = f"{wanted['NodeInstanceType']} in {wanted['Subnets']}"
        raise Ec2Error("ValidationError", f"No node of the lab stands ready for a node group of {where}")

    def _describe(self, params: Params) -> Tree:
        stack = self._stack(params)
        outputs = [{"OutputKey": "NodeInstanceRole", "OutputValue": f"arn:aws:iam::{OWNER_ID}:role/{ROLE}"}]
        described = {
            "StackId": _stack_id(self._vpc, stack.name),
            "StackName": stack.name,
            "CreationTime": "2026-01-01T00:00:00Z",
            "StackStatus": stack.status,
            "Outputs": outputs,
        }
        return {"Stacks": [described]}

    def _delete(self, params: Params) -> Tree:
        stack = self._stack(params)
        stack.status = "DELETE_IN_PROGRESS"
        self._start(stack, lambda: self._terminate(stack.node), done="DELETE_COMPLETE", failed="DELETE_FAILED")
        return {}

    def _stack(self, params: Params) -> _Stack:
        name = params.required("StackName")
        with self._lock:
            if name in self._stacks:
                return self._stacks[name]
        raise Ec2Error("ValidationError", f"Stack with id {name} does not exist")

    def _start(self, stack: _Stack, work: Callable[[], None], *, done: str, failed: str) -> None:
        def run() -> None:
            try:
                work()
            except Exception:  # the top of a thread; the tests see the status
                log.exception("stack %s failed", stack.name)
                stack.status = failed
            else:
                stack.status = done

        stack.thread = threading.Thread(target=run, name=f"stack-{stack.name}", daemon=True)
        stack.thread.start()


def labels_of(wanted: Mapping[str, str]) -> dict[str, str]:
    """Return the labels of a node group's nodes, by the parameters of its stack. A group whose parameters have no arguments for the
    node's bootstrap script is a managed one."""
    if "BootstrapArguments" not in wanted:
        return {MANAGED_LABEL: wanted["NodeGroupName"]}
    listed = _NODE_LABELS.search(wanted["BootstrapArguments"])
    pairs = (pair.partition("=") for pair in listed[1].split(",")) if listed else ()
    return {key: value for key, _, value in pairs}


def _stack_id(vpc: Vpc, name: str) -> str:
    return f"arn:aws:cloudformation:{vpc.region}:{OWNER_ID}:stack/{name}/lab"
