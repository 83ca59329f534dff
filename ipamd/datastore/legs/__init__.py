"""What the datastore has of sandboxes whose first leg has no address of the pool."""
