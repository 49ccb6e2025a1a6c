"""`python -m logel`."""

from logel.cli import main

main()
