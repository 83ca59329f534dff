"""The sweeper against the lab's EC2 over HTTP."""
