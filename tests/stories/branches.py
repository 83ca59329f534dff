"""What the stories of security groups for pods share: a node with a trunk, and sandboxes whose pods are known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ipamd.core.deadline import Deadline, StepTimer
from ipamd.model.attachment import Attachment
from ipamd.model.cni_request import SandboxNames
from ipamd.settings import NetworkConfig
from tests.fakes.cloud import FakeEc2
from tests.fakes.node import FakeNode
from tests.unit.service.test_branches import TRUNK_ENI


def node_with_trunk(path: Path) -> FakeNode:
    """An m5.large in strict mode, which serves."""
    ec2 = FakeEc2()
    ec2.enis |= {TRUNK_ENI.eni_id: TRUNK_ENI}
    node = FakeNode(path, ec2=ec2, network=NetworkConfig(pod_eni=True))
    node.bring_up()
    return node


def add(node: FakeNode, sandbox: str, *, pod: str, deadline_s: float = 60.0) -> Attachment:
    """ADD of a sandbox of a pod."""
    request = replace(node.request(sandbox), names=SandboxNames("default", pod, "uid"))
    deadline = Deadline.after(node.clock, deadline_s)
    made = node.attacher.attach_sandbox(request, deadline=deadline, steps=StepTimer(node.clock))
    node.runtime.run(sandbox)
    return made
