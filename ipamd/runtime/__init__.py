"""The container runtime over CRI: read side only. A list is complete or it is an error; events are hints (design 4)."""
