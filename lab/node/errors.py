"""What goes wrong with a node; the tree is drawn in lab/errors.py."""

from lab.errors import LabError


class NodeError(LabError):
    """A node, or something that it should run, could not be started or has ended."""


class SandboxError(NodeError):
    """The container runtime refused or did not answer; carries its words."""
