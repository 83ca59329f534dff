"""The errors of the cluster; lab/errors.py shows the tree of the lab's errors."""

from lab.errors import LabError


class ClusterError(LabError):
    """The cluster could not be built, or did not reach an expected state in time."""


class ApiError(ClusterError):
    """The API server refused a request. `status`: the HTTP status; 0 if the server did not answer."""

    def __init__(self, message: str, *, status: int) -> None:
        """`message`: a sentence for the person who runs the lab."""
        super().__init__(message)
        self.status = status
