"""One module per verb of `ipamctl`: the module's name is the verb, its `VERB` says the rest. No list names them: `main` finds them."""
