"""The history on the host's disk: what happened to each address, in files that outlive the daemon."""
