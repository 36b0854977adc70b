"""rlx in the training loops of other projects: one module each, which needs that project's package.

``record`` writes the steps of any gymnasium loop into a dataset. ``stable_baselines3`` keeps the steps of that
project's replay buffers compressed; ``d3rlpy`` and ``tianshou`` make their buffers of a dataset; ``torchrl``
joins storages and samplers of both projects; ``lerobot`` gives steps with others before and after them;
``rllib`` writes the offline data that RLlib reads.
"""
