"""How a reward moves a policy."""
