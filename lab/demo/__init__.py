"""`make demo`: show and check the main job in a lab, from two empty nodes to two empty nodes."""
