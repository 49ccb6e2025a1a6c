"""The paper's experiments and our own, one command each."""
