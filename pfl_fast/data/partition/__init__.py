"""Partitions of a data set over clients: rules, train/test splits, and a record that is saved with a hash."""

from pfl_fast.data.partition.make import RULES, can_be_made, make_partition
from pfl_fast.data.partition.record import SPLITS, Partition
from pfl_fast.data.partition_spec import PartitionSpec

__all__ = ["RULES", "SPLITS", "Partition", "PartitionSpec", "can_be_made", "make_partition"]
