"""The container runtime over CRI, read only. A list is complete or an error (I11); events are hints (docs/adr/0013)."""
