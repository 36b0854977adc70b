"""Worker processes that step environments, and the pools that feed, watch and replace them.

``pool.WorkerPool`` is what ``step_pool.StepPool`` of collectors and ``pool.ShardPool`` of ``rlx collect`` share.
"""
