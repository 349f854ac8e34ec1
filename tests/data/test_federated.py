import itertools

import numpy as np
import pytest
import torch

from pfl_fast.assembly import normalised
from pfl_fast.data.federated import FederatedData
from pfl_fast.data.partition import Partition
from pfl_fast.errors import ConfigError, DataError
from tests.data.samples import images, labelled, partitioned


def partition_of(sizes, tests=1):
    """Clients with these numbers of training samples, and ``tests`` test samples each."""
    ends = np.cumsum([0, *sizes])
    total = ends[-1]
    train = tuple(np.arange(a, b)[::-1].copy() for a, b in itertools.pairwise(ends))
    test = tuple(np.arange(total + i * tests, total + (i + 1) * tests) for i in range(len(sizes)))
    return Partition("by hand", {}, train, test, tuple(np.zeros(0, dtype=np.int64) for _ in sizes))


def federated(sizes, shape=(6, 5, 3), **options):
    partition = partition_of(sizes)
    count = sum(sizes) + len(sizes)
    return FederatedData(images(np.arange(count) % 7, shape=shape), partition, **options)


SIZES = [23, 10, 1, 20, 7, 11, 23, 40, 27]


def collected(data, clients, round, epoch):
    """What each client got from ``stacked``, as lists of batches."""
    ranked = data.stack_order(clients)
    got = {client: [] for client in clients}
    for groups in data.stacked_batches(clients, round, epoch):
        places = [place for group in groups for place in range(group.rows.start, group.rows.stop)]
        assert places == list(range(len(places))), "those still active are the first ones"
        sizes = [group.y.shape[1] for group in groups]
        assert sizes == sorted(set(sizes), reverse=True), "one group per size, large ones first"
        for group in groups:
            assert group.x.shape[:2] == group.y.shape == (group.rows.stop - group.rows.start, group.y.shape[1])
            for place, x, y in zip(ranked[group.rows], group.x, group.y, strict=True):
                got[place].append((x, y))
    return got


@pytest.mark.parametrize("augment", ["none", "flip", "flip-rotate", "crop-flip"])
def test_single_and_stacked_clients_get_the_same(augment):
    data = federated(SIZES, augment=augment, seed=3)
    clients = [4, 0, 2, 3, 1, 5, 8, 7]
    got = collected(data, clients, 2, 1)
    for client in clients:
        alone = list(data.batches(client, 2, 1))
        assert len(alone) == len(got[client]) == data.steps(client)
        for (x, y), batch in zip(got[client], alone, strict=True):
            assert torch.equal(x, batch.x)
            assert torch.equal(y, batch.y)


@pytest.mark.parametrize("size", [1, 2, 9, 10, 11, 13, 20])
@pytest.mark.parametrize("shuffle", [True, False])
def test_an_epoch_is_the_order_cut_into_batches(size, shuffle):
    data = federated([size, 3], shuffle=shuffle)
    order = data.order(0, 1, 0).sample
    assert sorted(order.tolist()) == list(range(size))
    if not shuffle:
        assert order.tolist() == list(range(size))[::-1]
    batches = list(data.batches(0, 1, 0))
    assert [len(batch.y) for batch in batches] == [len(part) for part in order.split(10)]
    for batch, index in zip(batches, order.split(10), strict=True):
        expected = torch.from_numpy(data.dataset.x)[index].permute(0, 3, 1, 2).float().div(255).sub(0.5).div(0.25)
        torch.testing.assert_close(batch.x, expected)
        assert batch.x.is_contiguous(memory_format=torch.channels_last)
        assert batch.y.tolist() == data.dataset.y[index.numpy()].tolist()


def test_the_order_follows_from_seed_client_round_and_epoch():
    data, again, other = (federated([50, 50], seed=seed) for seed in (0, 0, 1))
    orders = [
        data.order(0, 0, 0).sample,
        data.order(0, 1, 0).sample,
        data.order(0, 0, 1).sample,
        data.order(1, 0, 0).sample - 50,
    ]
    orders.append(other.order(0, 0, 0).sample)
    assert len({tuple(order.tolist()) for order in orders}) == 5
    list(again.batches(1, 5, 5))
    assert torch.equal(again.order(0, 0, 0).sample, data.order(0, 0, 0).sample)


def test_many_chunks_give_the_same(monkeypatch):
    whole = federated([47, 31], augment="flip")
    expected = [list(whole.batches(0, 0, 0)), list(whole.stacked_batches([0, 1], 0, 0))]
    monkeypatch.setattr("pfl_fast.data.federated.CHUNK_BYTES", 1)
    for one, other in zip(whole.batches(0, 0, 0), expected[0], strict=True):
        assert torch.equal(one.x, other.x)
    for ours, theirs in zip(whole.stacked_batches([0, 1], 0, 0), expected[1], strict=True):
        assert [(g.rows, g.x.tolist(), g.y.tolist()) for g in ours] == [
            (g.rows, g.x.tolist(), g.y.tolist()) for g in theirs
        ]


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({}, [[10, 10, 3], [10], [10, 1]]),
        ({"drop_last": True}, [[10, 10], [10], [10]]),
        ({"skip_single": True}, [[10, 10, 3], [10], [10]]),
        ({"batch_size": 11}, [[11, 11, 1], [10], [11]]),
        ({"batch_size": 100}, [[23], [10], [11]]),
    ],
)
def test_what_happens_to_the_last_batch(options, sizes):
    data = federated([23, 10, 11], **options)
    assert [[len(batch.y) for batch in data.batches(client, 0, 0)] for client in range(3)] == sizes
    assert [data.steps(client) for client in range(3)] == [len(row) for row in sizes]
    got = collected(data, [0, 1, 2], 0, 0)
    assert [[len(y) for _, y in got[client]] for client in range(3)] == sizes


def test_clients_without_a_batch_are_named():
    with pytest.raises(DataError, match="client 1 has no training samples; take fewer"):
        federated([3, 0])
    with pytest.raises(DataError, match=r"client 1 has 7 training samples.*smaller batch size"):
        federated([10, 7], drop_last=True)
    with pytest.raises(DataError, match="client 0 has 1 training samples"):
        federated([1], skip_single=True)


def test_evaluation_is_in_order_and_the_union_counts_shared_tests_once():
    domain = np.repeat([0, 1], 30)
    dataset = images(np.arange(60) % 5, test=np.arange(60) % 3 == 0, domain=domain, domains=("a", "b"))
    data = FederatedData(dataset, partitioned(dataset, "domain-split", clients=4), augment="flip")
    batches = list(data.evaluation("test", 3, batch_size=4))
    assert [len(batch.y) for batch in batches] == [4, 4, 2]
    index = data.indices("test", 3)
    assert torch.equal(torch.cat([batch.x for batch in batches]), data.take(index).x)
    assert data.union("test").tolist() == np.flatnonzero(dataset.test).tolist()
    assert sum(len(batch.y) for batch in data.evaluation("test")) == 20
    assert list(data.evaluation("validation", 0)) == []
    with pytest.raises(ValueError, match="did you mean 'train'"):
        data.indices("trian", 0)


def test_text_and_features():
    y = np.arange(12) % 3
    tokens = np.arange(60, dtype=np.int32).reshape(12, 5)
    features = np.arange(24, dtype=np.float32).reshape(12, 2)
    for x, dtype in ((tokens, torch.int64), (features, torch.float64)):
        data = FederatedData(labelled(y, x=x), partition_of([7, 3]), batch_size=4, dtype=torch.float64)
        for batch, index in zip(data.batches(0, 0, 0), data.order(0, 0, 0).sample.split(4), strict=True):
            assert batch.x.dtype == dtype
            assert torch.equal(batch.x, torch.from_numpy(x)[index].to(dtype))
        got = collected(data, [0, 1], 0, 0)
        assert torch.equal(got[1][0][0], next(data.batches(1, 0, 0)).x)


def test_sizes_shapes_and_bytes():
    data = federated([3, 5], shape=(4, 6, 1))
    assert (data.clients, data.num_classes, data.input_shape) == (2, 7, (1, 4, 6))
    assert [data.train_sizes.tolist(), data.test_sizes.tolist(), data.validation_sizes.tolist()] == [
        [3, 5], [1, 1], [0, 0],
    ]  # fmt: skip
    assert data.bytes == 10 * 24 + 10 * 8


def test_read_only_memory_maps_are_used_without_a_copy_or_a_warning(tmp_path, recwarn):
    dataset = images(np.arange(9) % 2)
    np.save(tmp_path / "x.npy", dataset.x)
    mapped = labelled(dataset.y, x=np.load(tmp_path / "x.npy", mmap_mode="r"), mean=dataset.mean, std=dataset.std)
    data = FederatedData(mapped, partition_of([8]))
    assert data._x.data_ptr() == mapped.x.ctypes.data
    assert torch.equal(
        next(data.batches(0, 0, 0)).x, next(FederatedData(dataset, partition_of([8])).batches(0, 0, 0)).x
    )
    assert not recwarn.list


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="did you mean 'flip'"):
        federated([3], augment="flp")
    with pytest.raises(ValueError, match="batch_size must be at least 1, not 0"):
        federated([3], batch_size=0)
    with pytest.raises(ValueError, match="batch_size must be at least 2, not 1"):
        federated([3], batch_size=1, skip_single=True)
    with pytest.raises(ValueError, match="is for images, but toy is features"):
        FederatedData(labelled([0, 1]), partition_of([1]), augment="flip")
    with pytest.raises(DataError, match="with 4 samples, but toy has 2; make it again"):
        FederatedData(labelled([0, 1]), partition_of([3]))
    small = labelled(np.arange(40) % 2)
    with pytest.raises(DataError, match="the partition is of toy with 40 samples, but toy has 50"):
        FederatedData(labelled(np.arange(50) % 2), partitioned(small, "iid", clients=2))


@pytest.mark.parametrize(
    ("name", "mean", "std"),
    [
        ("half", 0.5, 0.5),
        ("none", 0.0, 1.0),
        ("imagenet", torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])),
    ],
)
def test_normalisation_by_name(name, mean, std):
    dataset = images(np.arange(5) % 2)
    batch = next(FederatedData(normalised(dataset, name), partition_of([4]), shuffle=False).batches(0, 0, 0))
    pixels = torch.from_numpy(dataset.x[[3, 2, 1, 0]]) / 255
    torch.testing.assert_close(batch.x, ((pixels - mean) / std).permute(0, 3, 1, 2))


@pytest.mark.parametrize(
    ("dataset", "shown"), [(images([0, 1], shape=(4, 4, 1)), "1 channels"), (labelled([0, 1]), "features")]
)
def test_imagenets_normalisation_is_for_images_of_three_channels(dataset, shown):
    with pytest.raises(ConfigError, match=f"normalise: imagenet is for images of 3 channels, got {shown}"):
        normalised(dataset, "imagenet")


def test_half_types():
    data = federated([12], dtype=torch.bfloat16, augment="flip-rotate")
    assert next(data.batches(0, 0, 0)).x.dtype == torch.bfloat16


@pytest.mark.parametrize("options", [{}, {"drop_last": True}, {"skip_single": True}, {"shuffle": False}])
def test_whole_epochs_have_the_samples_of_all_batches_in_one(options):
    sizes = [23, 10, 11, 20, 21, 23, 40]
    data = federated(sizes, batch_size=10, **options)
    whole = data.whole()
    clients = list(range(len(sizes)))
    assert whole.stack_order(clients) == data.stack_order(clients), "rows of a stack stay whose they are"
    together = collected(whole, clients, 2, 3)
    for client in clients:
        (batch,) = whole.batches(client, 2, 3)
        parts = list(data.batches(client, 2, 3))
        assert whole.steps(client) == 1
        assert torch.equal(batch.position, torch.cat([part.position for part in parts]))
        assert torch.equal(batch.x, torch.cat([part.x for part in parts]))
        assert torch.equal(together[client][0][0], batch.x)
    assert data.steps(0) > 1, "the data itself is as it was"
