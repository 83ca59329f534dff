"""The plugins beside ours: what comes with the image, and what each of them speaks."""
