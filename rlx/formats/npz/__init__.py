"""numpy's archives of steps."""
