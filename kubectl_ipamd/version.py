"""The release. It is the daemon's, because both are cut from one commit; a test compares them."""

__version__ = "0.1.0"
