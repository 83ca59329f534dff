"""The sources of the legs of new sandboxes, and the adoption of unrecorded sandboxes by the legs that the kernel shows."""
