"""Other systems, driven the way ours is, so that our figures can be compared."""
