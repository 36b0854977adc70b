"""Functions in other processes, of this machine or of a Ray cluster: one function over many shards, or actors, which
keep a state.

``engines.open_engine`` returns an engine, and ``actor.Actors`` is the protocol of actors.
"""
