"""Check on a real node the assumptions of the code about EC2 (docs/assumptions.md), with a tagged ENI of the probe's own.

Only `ipamctl probe aws` uses this package; the daemon does not import it. Start reading at `run.py`.
"""
