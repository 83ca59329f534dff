"""What the node itself must look like: routes and rules, the conflist, the plugins beside ours."""
