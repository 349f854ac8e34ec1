"""pfl-fast: every client of a personalized federated learning experiment in one process, fast.

``from pfl_fast import ops`` is all that another trainer needs to use the fused operators.
"""

__version__ = "0.1.0"
