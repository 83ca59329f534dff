"""The objects that all packages with use cases share: health, demand, deadlines, pauses. This package imports none of them, and no
adapter. A package of the daemon is also called a *room*."""
