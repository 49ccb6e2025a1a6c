"""The paper's studies, one module each, and the resumable parallel runner they share."""
