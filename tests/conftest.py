"""Settings shared by all tests: one thread, and the same examples in every run."""

from __future__ import annotations

import os

from hypothesis import settings

# Read by torch and BLAS when they are first imported, which happens after this file.
os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile("logel", derandomize=True, deadline=None)
settings.load_profile("logel")
