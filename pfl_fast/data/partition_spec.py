"""Options of a partition. Imports neither NumPy nor torch, so that the command line starts instantly."""

from __future__ import annotations

from dataclasses import dataclass

from pfl_fast.options import option


@dataclass(frozen=True)
class PartitionSpec:
    """Options of :func:`~pfl_fast.data.partition.make_partition`, and of the commands ``train`` and ``data``."""

    partition: str = option(
        "auto",
        "partition rule (iid, dirichlet, pathological, domain, domain-split, superclass, natural), folder of a saved "
        "partition, or .csv or .json file with the client of each sample; auto: natural for data with clients of its "
        "own, domain for data with domains, else dirichlet",
    )
    clients: int | None = option(
        None, "number of clients; none: 20, one per domain (domain-split: two), or as imported", minimum=1
    )
    beta: float = option(0.1, "concentration of the dirichlet partition; smaller is more skewed", minimum=0)
    classes_per_client: int | None = option(
        None, "classes per client in the pathological partition; none: a tenth of all classes, at least 2", minimum=1
    )
    superclass_cuts: str | None = option(
        None, "sizes of the parts of a subclass in the superclass partition; none: equal", ["equal", "random", None]
    )
    min_samples: int | None = option(
        None,
        "minimum number of samples per client; none: batch_size / test_fraction, at most half an equal share",
        minimum=0,
    )
    per_client: int | None = option(None, "use at most N training samples per client, drawn at random", minimum=1)
    per_domain: int | None = option(
        None, "use at most N training samples per domain, drawn at random and shared by its clients", minimum=1
    )
    draw_clients: int | None = option(None, "keep only N clients of the partition, drawn at random", minimum=1)
    test: str | None = option(
        None,
        "test samples: a random split of each client's samples, or the official test part; none: official for domain, "
        "domain-split, superclass and natural, else split",
        ["split", "official", None],
    )
    test_fraction: float | None = option(
        None,
        "fraction of samples held out for testing; none: 0.2 in partitions by domain, else 0.25",
        minimum=0,
        maximum=1,
    )
    test_by_class: bool | None = option(
        None,
        "hold out test_fraction of each class of a domain, rounded up, instead of the domain as a whole; none: as in "
        "the papers of the data set (office-home)",
    )
    validation: float = option(0.0, "fraction of training samples held out for validation", minimum=0, maximum=1)
    batch_size: int = option(10, "mini-batch size of local training", minimum=1)
    seed: int = option(0, "random seed of the run", minimum=0)
    partition_seed: int | None = option(
        None, "random seed of the partition; none: the seed of the run, or 1 with legacy_partition", minimum=0
    )
    legacy_partition: bool = option(
        False, "draw the dirichlet or pathological partition as the papers' published code does"
    )


def default_test_fraction(rule: str) -> float:
    """Returns the default of ``test_fraction`` for a partition rule, as in the papers."""
    return 0.2 if rule in ("domain", "domain-split") else 0.25
