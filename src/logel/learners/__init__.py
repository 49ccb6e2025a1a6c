"""Learners that leave a learning history behind."""
