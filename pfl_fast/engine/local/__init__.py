"""Local training of one client or a stack of clients."""
