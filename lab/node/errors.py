"""What goes wrong with a node. The lab's tree: LabError (lab/vpc/errors.py) > FabricError | NodeError | ControlError."""

from lab.vpc.errors import LabError


class NodeError(LabError):
    """A node, or something that it should run, could not be started or has ended."""


class SandboxError(NodeError):
    """The container runtime refused or did not answer; carries its words."""
