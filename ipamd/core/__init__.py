"""The objects that all rooms with use cases share: health, demand, deadlines, pauses. It imports no other room, and no adapter."""
