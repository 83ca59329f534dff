"""`make demo`: the main job shown and checked on the embedded lab, from two empty nodes to two empty nodes."""
