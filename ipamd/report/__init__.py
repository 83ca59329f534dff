"""Report what is known and what differs: audit, explain, and the sources of `ipamctl` and metrics. Reads only."""
