"""Environments: by id, function or object, single or batched, all stepped through one class.

``gym_env.open_environment`` returns a ``vector.VectorEnvironment``.
"""
