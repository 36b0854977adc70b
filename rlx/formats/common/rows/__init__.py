"""Steps in rows: which rows are an episode, and reading them in order.

``scan.EpisodeScan`` finds the episodes, and ``ted_run.make_run`` returns a run of them.
"""
