"""Checks on a real node what the code takes for granted about EC2 (docs/assumptions.md), with one tagged ENI of its own.

Only `ipamctl probe aws` uses it; the daemon does not import it. Start reading at `run.py`.
"""
