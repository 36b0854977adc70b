"""The functions of ``rlx``: one for each command, with the command's names and defaults."""
