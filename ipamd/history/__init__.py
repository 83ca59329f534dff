"""The history on the host's disk: append-only files of JSON lines, written behind by one thread (docs/adr/0035)."""
