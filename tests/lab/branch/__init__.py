"""Security groups for pods on the lab: its own parts, and the daemon on them."""
