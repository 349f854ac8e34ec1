"""Readers of data sets, one module per file format: each finds its files in a folder and reads them."""
