"""Data sets, their partition over clients, and batches."""
