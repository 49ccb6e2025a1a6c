"""From steps to an answer."""
