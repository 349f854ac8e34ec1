"""State of a run: the part table, tensors of clients and server, checkpoints."""
