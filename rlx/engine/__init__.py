"""Functions in other processes: one over many shards, or actors, which keep a state; on whatever runs them."""
