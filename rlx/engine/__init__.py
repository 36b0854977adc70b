"""One function over many shards, on whatever runs it."""
