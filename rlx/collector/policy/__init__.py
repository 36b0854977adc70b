"""Policies: functions, torch modules and TensorDict modules, in memory or by name, all called through one protocol.

``spec.as_policy`` returns a ``protocol.Policy``; ``spec.PolicySpec`` names one.
"""
