"""Claims about speed and memory, measured; `make bench` fails when one is missed."""
