"""The history on disk."""
