"""One file per way in which data sets are distributed: each finds its files in a folder and reads them."""
