"""Worker processes that step environments, and the pools that feed, watch and replace them."""
