"""The release of this program. It equals the daemon's release, because both are built from the same commit; a test compares them."""

__version__ = "0.1.0"
