"""What an action leads to, as the stages show it."""
