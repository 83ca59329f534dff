"""The objects that all packages (*rooms*) with use cases share: health, demand, deadlines, pauses. This package
imports no other room, and no adapter."""
