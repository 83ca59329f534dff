"""How the datastore stores sandboxes whose first leg has no address of the pool (those with a branch ENI)."""
