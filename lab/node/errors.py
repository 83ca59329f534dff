"""The errors of a node; lab/errors.py shows the tree of all errors."""

from lab.errors import LabError


class NodeError(LabError):
    """A node, or a program in it, could not be started or has ended."""


class SandboxError(NodeError):
    """The container runtime refused a call or did not answer. The text has the runtime's message."""
