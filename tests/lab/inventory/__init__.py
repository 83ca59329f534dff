"""The inventory against the lab's EC2 over HTTP."""
