"""Users and roles as services see them, and where the first user comes from."""
