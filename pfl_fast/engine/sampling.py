"""Sampling of the cohort of a round, a pure function of (seed, round)."""

from __future__ import annotations

from dataclasses import dataclass

from pfl_fast.engine.settings import RoundSettings
from pfl_fast.randomness import key, permutation, uniform


@dataclass(frozen=True)
class Cohort:
    """The clients of a round, each list in ascending order.

    Attributes:
        training: clients that train.
        uploading: clients whose upload arrives.
        receiving: clients that receive the new parts at the end of the round.
    """

    training: list[int]
    uploading: list[int]
    receiving: list[int]


def sample(settings: RoundSettings, clients: int, round: int) -> Cohort:
    """Samples the clients of a round without replacement."""
    everyone = list(range(clients))
    selected = _draw(key(settings.seed, "sample", round), everyone, _how_many(settings, clients, round))
    lost = int(settings.client_dropout * len(selected) + 0.5)  # halves are rounded up
    uploading = _draw(key(settings.seed, "dropout", round), selected, max(len(selected) - lost, 1))
    to_all = settings.train_all or settings.broadcast_to_all
    return Cohort(everyone if settings.train_all else selected, uploading, everyone if to_all else selected)


def _how_many(settings: RoundSettings, clients: int, round: int) -> int:
    least = max(int(settings.join_ratio * clients + 1e-9), 1)  # 0.29 * 100 is 28.999999999999996
    if not settings.random_join:
        return least
    return least + int(uniform(key(settings.seed, "how many", round), 1)[0] * (clients - least + 1))


def _draw(draw_key: int, clients: list[int], count: int) -> list[int]:
    if count >= len(clients):
        return clients
    return sorted(clients[i] for i in permutation(draw_key, len(clients))[:count])
