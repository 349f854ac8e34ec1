"""Communication rounds: cohorts, local training, client state, executors, evaluation and results."""
