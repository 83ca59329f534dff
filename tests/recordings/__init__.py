"""Metrics of lab nodes in real trouble, scraped as a Prometheus would, kept in `series/`: what alerts are tried on (tests/heavy).

`python -m tests.recordings` records them all anew, as root, in about half an hour; with names only these. `assignments` is lines of
the log instead, for the queries of docs/troubleshooting.md.
"""
