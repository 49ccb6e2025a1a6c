"""`python -m logel`."""

from logel.cli.main import main

main()
