"""Rollouts: the loop of policy and environment, and the arrays, episodes and layouts of its steps.

Start at ``loop.Rollout``, which fills ``steps.Steps``.
"""
