"""Simulate a fleet of nodes in virtual time. Each node has the daemon's own planner, executor and EC2 adapter; EC2 is a model."""
