"""Environments: by id, function or object, single or batched, all stepped through one protocol.

``gym_env.open_environment`` returns a ``vector.Environment``.
"""
