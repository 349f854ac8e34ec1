"""``python -m pfl_fast``: the same as ``pfl-fast``."""

from pfl_fast.cli import main

main()
