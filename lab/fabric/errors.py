"""What goes wrong in the fabric; the tree is drawn in lab/errors.py."""

from lab.errors import LabError


class FabricError(LabError):
    """The fabric or one of its namespaces could not be built, changed or read."""
