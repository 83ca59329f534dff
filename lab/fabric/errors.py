"""The error of the lab's network; lab/errors.py shows the tree of all errors."""

from lab.errors import LabError


class FabricError(LabError):
    """The lab's network or one of its namespaces could not be built, changed or read."""
