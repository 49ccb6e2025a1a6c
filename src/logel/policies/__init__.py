"""Policy families, and fitting them to what was seen."""
