"""ADD of a pod that may have security groups of its own, for the stories of branch ENIs."""

from __future__ import annotations

from ipamd.model.attachment import Attachment
from tests.fakes.node import FakeNode


def add(node: FakeNode, sandbox: str, *, pod: str, deadline_s: float = 60.0) -> Attachment:
    """ADD of a sandbox of a pod; the runtime lists the sandbox afterwards."""
    made = node.add(sandbox, pod=pod, deadline_s=deadline_s)
    node.runtime.run(sandbox)
    return made
