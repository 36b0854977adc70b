"""What a package can add to rlx: a format, a transform and a command."""
