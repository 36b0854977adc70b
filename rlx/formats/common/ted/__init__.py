"""Steps whose arrays are named by TED paths."""
