"""What a reward is made of, and a recovered reward at work."""
