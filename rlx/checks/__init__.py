"""Checks of meaning: reports what a learner would stumble over in a dataset whose bytes are all right.

``rlx.checks.examination.examine`` runs all checks over the blocks of a dataset or of another project's files.
"""
