"""Compare and repair what the node itself needs: routes and rules, the conflist, and the plugins beside ours."""
