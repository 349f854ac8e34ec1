"""Results of a run: metrics, records of rounds, listeners, the run folder."""
