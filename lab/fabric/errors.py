"""What goes wrong in the fabric. The lab's tree: LabError (lab/vpc/errors.py) > FabricError | NodeError | ControlError."""

from lab.vpc.errors import LabError


class FabricError(LabError):
    """The fabric or one of its namespaces could not be built, changed or read."""
