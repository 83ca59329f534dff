"""How the datastore stores sandboxes with a branch ENI. The address of such a sandbox's first leg is not of the pool."""
