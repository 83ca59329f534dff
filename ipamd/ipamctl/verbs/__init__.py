"""The verbs of `ipamctl`: each module has those that are read together in its `VERBS`, by name. `main` finds the modules."""
