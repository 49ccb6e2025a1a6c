"""A learner is code: its own update, run again under rewards it might have had."""
