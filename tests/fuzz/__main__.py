"""`python -m tests.fuzz`; see `tests.fuzz.run`, which processes that it starts can import."""

import sys

from tests.fuzz.run import main

sys.exit(main())
