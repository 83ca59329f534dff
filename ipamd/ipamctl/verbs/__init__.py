"""The verbs of `ipamctl`, each in a module of its own. `main` lists them by name."""
