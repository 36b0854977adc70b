"""Learners in one file each, to see that what rlx collects is what they need."""
