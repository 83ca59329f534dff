"""What goes wrong with the cluster; the tree is drawn in lab/errors.py."""

from lab.errors import LabError


class ClusterError(LabError):
    """The cluster, or something that it should do, did not come about in time."""


class ApiError(ClusterError):
    """The API server refused; `status` is HTTP's, 0 if it did not answer."""

    def __init__(self, message: str, *, status: int) -> None:
        """The message is a sentence for the lab's operator."""
        super().__init__(message)
        self.status = status
