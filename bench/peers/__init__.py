"""Other systems, driven the way ours is, so that a figure of ours has something beside it."""
