"""`vpc-ipamd-sweeper`: delete the leaked ENIs of one cluster. A program of its own; the daemon does not know it."""
