import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from pfl_fast.data.partition import RULES, Partition, PartitionSpec, make_partition
from pfl_fast.errors import ConfigError, DataError, PflFastError
from tests.data.samples import cifar100_like, labelled, partitioned


def three_domains(sizes=(30, 11, 17), test_every=4):
    domain = np.repeat(np.arange(len(sizes)), sizes)
    y = np.arange(len(domain)) % 5
    test = np.arange(len(domain)) % test_every == 0
    return labelled(y, test=test, domain=domain, domains=("photo", "sketch", "art")[: len(sizes)])


def all_indices(partition):
    return np.concatenate([*partition.train, *partition.test, *partition.validation])


def assert_disjoint(partition, shared_tests=False):
    used = np.concatenate([*partition.train, *partition.validation])
    assert len(np.unique(used)) == len(used)
    tests = np.concatenate(partition.test)
    if shared_tests:
        assert all(len(np.unique(test)) == len(test) for test in partition.test)
    else:
        assert len(np.unique(tests)) == len(tests)
    assert not set(used.tolist()) & set(tests.tolist())


@st.composite
def problems(draw):
    classes = draw(st.integers(1, 7))
    y = draw(st.lists(st.integers(0, classes - 1), min_size=1, max_size=150))
    dataset = labelled(y, test=np.arange(len(y)) % draw(st.integers(2, 9)) == 0)
    options = {
        "partition": draw(st.sampled_from(["iid", "dirichlet", "pathological"])),
        "clients": draw(st.integers(1, 13)),
        "seed": draw(st.integers(0, 99)),
        "beta": draw(st.sampled_from([1e-4, 0.01, 0.1, 1.0, 100.0])),
        "classes_per_client": draw(st.integers(1, 4)),
        "per_client": draw(st.sampled_from([None, 1, 5])),
        "validation": draw(st.sampled_from([0.0, 0.2, 0.9])),
        "test": draw(st.sampled_from(["split", "official"])),
        "test_fraction": draw(st.sampled_from([0.0, 0.25, 0.5])),
        "legacy_partition": draw(st.sampled_from([False, False, False, True])),
    }
    return dataset, PartitionSpec(**options)


@settings(max_examples=150, deadline=None)
@given(problems())
def test_every_sample_is_used_at_most_once_or_the_spec_is_refused(problem):
    dataset, spec = problem
    try:
        made = make_partition(dataset, spec)
    except PflFastError:
        reject()
    assert made.clients == spec.clients
    assert_disjoint(made)
    assert min(map(len, made.train)) >= 1
    used = all_indices(made)
    assert used.dtype == np.int64
    assert used.max() < len(dataset)
    if spec.per_client:
        assert max(map(len, made.train)) <= spec.per_client
    if spec.test == "official":
        assert not dataset.test[np.concatenate(made.train)].any()
        assert dataset.test[np.concatenate(made.test)].all()


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(2, 9), st.sampled_from([1e-4, 0.01, 0.1, 1.0]), st.integers(0, 99))
def test_dirichlet_succeeds_whenever_the_samples_suffice(clients, each, beta, seed):
    y = np.arange(clients * each) % 3
    made = partitioned(labelled(y), "dirichlet", clients=clients, beta=beta, seed=seed, min_samples=each)
    assert [len(a) + len(b) for a, b in zip(made.train, made.test, strict=True)] == [each] * clients
    assert_disjoint(made)


def test_too_few_samples_are_refused_with_the_arithmetic():
    dataset = labelled(np.arange(10_000) % 10)
    with pytest.raises(DataError, match=r"500 x 40 = 20000 samples, but there are 10000; take at most 250 clients"):
        partitioned(dataset, "dirichlet", clients=500, seed=0, min_samples=40)
    with pytest.raises(DataError, match="11 x 1 = 11 samples, but there are 10"):
        partitioned(labelled([0] * 10), "dirichlet", clients=11, seed=1, legacy_partition=True)


@pytest.mark.parametrize("rule", ["iid", "dirichlet", "pathological"])
def test_the_seed_decides(rule):
    dataset = labelled(np.arange(600) % 10)
    first, again, other = (partitioned(dataset, rule, clients=7, seed=seed) for seed in (3, 3, 4))
    assert first.hash == again.hash
    assert not np.array_equal(all_indices(first), all_indices(other))


def test_small_betas_are_more_skewed():
    y = np.arange(5000) % 10
    shares = []
    for beta in (0.05, 100.0):
        made = partitioned(labelled(y), "dirichlet", clients=10, beta=beta, seed=0)
        counts = np.stack([np.bincount(y[index], minlength=10) for index in made.train])
        shares.append((counts.max(1) / counts.sum(1)).mean())
    assert shares[0] > 0.4
    assert shares[1] < 0.2


@pytest.mark.parametrize(("clients", "classes", "per_client"), [(20, 10, 2), (20, 100, 10), (7, 5, 3), (3, 4, 3)])
def test_pathological_clients_have_their_number_of_classes(clients, classes, per_client):
    y = np.arange(60 * classes) % classes
    made = partitioned(labelled(y), "pathological", clients=clients, classes_per_client=per_client, seed=5)
    owned = [np.unique(y[np.concatenate(both)]) for both in zip(made.train, made.test, strict=True)]
    assert {len(own) for own in owned} == {per_client}
    assert len(all_indices(made)) == len(y), "every class has a client"


def test_iid_sizes_differ_by_at_most_one():
    made = partitioned(labelled(np.arange(101) % 3), "iid", clients=7, seed=0, test_fraction=0.0)
    assert sorted({len(index) for index in made.train}) == [14, 15]


def test_a_quarter_is_held_out_for_testing_and_validation_is_taken_from_training():
    made = partitioned(labelled(np.zeros(400)), "iid", clients=4, seed=0, validation=0.2)
    assert [len(made.train[0]), len(made.test[0]), len(made.validation[0])] == [60, 25, 15]


def test_official_tests_follow_the_training_classes():
    y = np.arange(2000) % 10
    dataset = labelled(y, test=np.arange(2000) >= 1500)
    made = partitioned(dataset, "dirichlet", clients=6, seed=0, test="official")
    assert sum(map(len, made.test)) == 500
    for train, test in zip(made.train, made.test, strict=True):
        expected = np.bincount(y[train], minlength=10) / 150 * 50
        assert np.abs(np.bincount(y[test], minlength=10) - expected).max() <= 1


def test_a_client_too_small_for_a_share_still_gets_one_official_test():
    dataset = labelled([0] * 103, test=[False] * 100 + [True] * 3)
    made = partitioned(dataset, "dirichlet", clients=3, beta=0.01, min_samples=1, seed=2, test="official")
    assert [len(test) for test in made.test] == [1, 1, 1]


def test_domain_is_the_official_parts_in_order():
    dataset = three_domains()
    made = partitioned(dataset, "domain")
    for number in range(3):
        here = dataset.domain == number
        np.testing.assert_array_equal(made.train[number], np.flatnonzero(here & ~dataset.test))
        np.testing.assert_array_equal(made.test[number], np.flatnonzero(here & dataset.test))


def test_domains_are_split_into_equal_parts_that_share_their_test_set():
    dataset = three_domains(sizes=(31, 31, 31))
    made = partitioned(dataset, "domain-split", clients=9, seed=0)
    assert_disjoint(made, shared_tests=True)
    for client in range(9):
        domain = client // 3
        assert set(dataset.domain[made.train[client]]) == {domain}
        np.testing.assert_array_equal(made.test[client], np.flatnonzero((dataset.domain == domain) & dataset.test))
    assert max(map(len, made.train)) - min(map(len, made.train)) <= 1


def test_domains_without_an_official_test_part_are_cut_first():
    dataset = three_domains(test_every=1000)
    dataset.test[:] = False
    made = partitioned(dataset, "domain-split", clients=6, seed=0, test_fraction=0.2)
    assert_disjoint(made, shared_tests=True)
    assert [len(test) for test in made.test] == [6, 6, 3, 3, 4, 4]


@pytest.mark.parametrize(("clients", "cuts"), [(5, "equal"), (10, "equal"), (15, "equal"), (10, "random")])
def test_superclass_clients_have_one_subclass_of_each(clients, cuts):
    dataset = cifar100_like()
    made = partitioned(dataset, "superclass", clients=clients, seed=1, superclass_cuts=cuts)
    assert_disjoint(made, shared_tests=True)
    assert sum(map(len, made.train)) == 600
    fine, coarse = dataset.labels["fine"], dataset.labels["coarse"]
    for train, test in zip(made.train, made.test, strict=True):
        own = np.unique(fine[train])
        assert len(own) == 20
        np.testing.assert_array_equal(np.unique(coarse[train]), np.arange(20))
        np.testing.assert_array_equal(test, np.flatnonzero(np.isin(fine, own) & dataset.test))
    for block in range(clients // 5):
        assert len(np.unique(fine[np.concatenate(made.train[5 * block : 5 * block + 5])])) == 100
    sizes = {len(train) for train in made.train}
    assert len(sizes) == 1 if cuts == "equal" else len(sizes) > 1


def test_superclass_sizes_of_cifar100(real_data):
    with np.load(real_data / "labels.npz") as file:
        fine, coarse = (
            np.concatenate([file[f"{name}_train"], file[f"{name}_test"]]) for name in ("cifar100", "cifar100_coarse")
        )
    dataset = labelled(coarse, test=np.arange(60000) >= 50000, labels={"fine": fine, "coarse": coarse})
    for clients, sizes in ((5, {10000}), (10, {5000}), (15, {3333, 3334}), (20, {2500})):
        made = partitioned(dataset, "superclass", clients=clients, seed=0)
        assert {len(train) for train in made.train} == sizes
        assert {len(test) for test in made.test} == {2000}


def test_natural_clients_are_those_of_the_import():
    natural = ((np.array([0, 1, 2]), np.array([3])), (np.array([4, 5]), np.array([6])))
    dataset = labelled(np.arange(7) % 2, natural=natural)
    made = partitioned(dataset, "natural")
    assert [index.tolist() for index in (*made.train, *made.test)] == [[0, 1, 2], [4, 5], [3], [6]]
    again = partitioned(dataset, "natural", test="split", test_fraction=0.5)
    assert sorted(np.concatenate([again.train[0], again.test[0]]).tolist()) == [0, 1, 2, 3]


def test_drawing_clients_keeps_them_whole():
    dataset = labelled(np.arange(1000) % 10)
    all_50 = partitioned(dataset, "iid", clients=50, seed=2)
    some = partitioned(dataset, "iid", clients=50, seed=2, draw_clients=7)
    whole = {tuple(train): tuple(test) for train, test in zip(all_50.train, all_50.test, strict=True)}
    assert some.clients == 7
    assert all(whole[tuple(train)] == tuple(test) for train, test in zip(some.train, some.test, strict=True))
    assert some.hash != all_50.hash
    with pytest.raises(DataError, match="cannot draw 51 of 50"):
        all_50.draw(51, 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rule": "dirchlet"}, "did you mean 'dirichlet'"),
        ({"test": "offical"}, "did you mean 'official'"),
        ({"clients": 0}, "clients: must be at least 1, got 0"),
        ({"beta": 0.0}, "beta: must be positive"),
        ({"beta": float("nan")}, "beta: must be a number, not NaN"),
        ({"validation": 1.0}, "validation: must be below 1"),
        ({"test_fraction": 1.0}, "test_fraction: must be below 1"),
        ({"per_client": 0}, "per_client: must be at least 1"),
        ({"superclass_cuts": "even"}, "superclass_cuts: must be one of equal, random"),
        ({"rule": "iid", "legacy_partition": True}, "legacy_partition: only for"),
        ({"rule": "domain"}, "has no domains"),
        ({"rule": "natural"}, "has no clients of its own"),
        ({"rule": "superclass"}, "'fine' and 'coarse'"),
        ({"test": "official"}, "no official test part"),
        ({"rule": "pathological", "classes_per_client": 11}, "only 10 classes"),
    ],
)
def test_mistakes_are_named(changes, message):
    with pytest.raises((ConfigError, DataError), match=message):
        partitioned(labelled(np.arange(100) % 10), **{"rule": "dirichlet", "clients": 4} | changes)


def test_wrong_numbers_of_clients_are_named():
    with pytest.raises(DataError, match="multiple of the 3 domains, not 4"):
        partitioned(three_domains(), "domain-split", clients=4)
    with pytest.raises(DataError, match="has 3 clients, not 4; for fewer, set draw_clients"):
        partitioned(three_domains(), "domain", clients=4)
    with pytest.raises(DataError, match="need a multiple of 5 clients, not 7"):
        partitioned(cifar100_like(), "superclass", clients=7)


def test_every_rule_has_a_default_number_of_clients():
    natural = ((np.arange(30), np.arange(30, 40)),)
    base = cifar100_like()
    dataset = labelled(
        base.y, test=base.test, labels=base.labels, natural=natural, domain=np.arange(800) % 3, domains=("a", "b", "c")
    )
    counts = [partitioned(dataset, rule).clients for rule in RULES]
    assert counts == [20, 20, 20, 3, 6, 20, 1]


@pytest.fixture
def saved(tmp_path):
    made = partitioned(labelled(np.arange(200) % 10), "dirichlet", clients=5, seed=0, validation=0.1)
    made.save(tmp_path / "saved")
    return made, tmp_path / "saved"


def test_saved_partitions_can_be_loaded(saved):
    made, folder = saved
    loaded = Partition.load(folder)
    assert (loaded.rule, loaded.settings, loaded.hash) == (made.rule, made.settings, made.hash)
    for split in ("train", "test", "validation"):
        for ours, theirs in zip(getattr(made, split), getattr(loaded, split), strict=True):
            np.testing.assert_array_equal(ours, theirs)
    assert sorted(file.name for file in folder.iterdir()) == ["indices.npy", "partition.json"]


def test_partitions_saved_by_earlier_versions_can_be_loaded(saved):
    made, folder = saved
    about = json.loads((folder / "partition.json").read_text())
    about["kind"] = about.pop("rule")
    (folder / "partition.json").write_text(json.dumps(about))
    loaded = Partition.load(folder)
    assert (loaded.rule, loaded.hash) == ("dirichlet", made.hash)


def test_the_hash_of_a_partition_stays_the_same(saved):
    """Runs and results of earlier versions hold the hash; the settings in it keep their names."""
    made, _ = saved
    assert made.hash == "90b1ad4f2ef3ff0a"


def test_the_hash_notices_every_change(saved):
    made, _ = saved
    moved = Partition(made.rule, made.settings, made.train[::-1], made.test, made.validation)
    renamed = Partition(made.rule, {**made.settings, "seed": 1}, made.train, made.test, made.validation)
    shifted = Partition(
        made.rule, made.settings, (made.train[0][:-1], np.append(made.train[0][-1:], made.train[1]), *made.train[2:]),
        made.test, made.validation,
    )  # fmt: skip
    assert len({made.hash, moved.hash, renamed.hash, shifted.hash}) == 4


def swap_indices(folder):
    flat = np.load(folder / "indices.npy")
    flat[[0, 1]] = flat[[1, 0]]
    np.save(folder / "indices.npy", flat)


DAMAGE = {
    "an index changed": (swap_indices, "its hash is"),
    "a setting changed": (lambda f: edit(f, '"seed": 0', '"seed": 1'), "its hash is"),
    "the indices cut off": (lambda f: (f / "indices.npy").write_bytes((f / "indices.npy").read_bytes()[:-100]), "npy"),
    "the indices gone": (lambda f: (f / "indices.npy").unlink(), "indices.npy"),
    "fewer indices": (lambda f: np.save(f / "indices.npy", np.load(f / "indices.npy")[:-1]), "has 199"),
    "other numbers": (lambda f: np.save(f / "indices.npy", np.zeros(200)), "one row of indices"),
    "negative indices": (lambda f: np.save(f / "indices.npy", np.full(200, -1)), "one row of indices"),
    "the JSON cut off": (lambda f: (f / "partition.json").write_text('{"format": 1, "ki'), "partition.json"),
    "no sizes": (lambda f: edit(f, '"sizes"', '"seizes"'), "sizes"),
    "another format": (lambda f: edit(f, '"format": 1', '"format": 2'), "format 1"),
    "nothing there": (lambda f: (f / "partition.json").unlink(), "holds no partition"),
}


def edit(folder, old, new):
    file = folder / "partition.json"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_noticed(saved, damage):
    harm, message = DAMAGE[damage]
    harm(saved[1])
    with pytest.raises(DataError, match=message):
        Partition.load(saved[1])


def test_awkward_sizes():
    for samples, clients in itertools.product((1, 2, 3), (1, 2)):
        try:
            made = partitioned(labelled([0] * samples), "dirichlet", clients=clients, test_fraction=0.0)
        except DataError:
            assert samples < clients
            continue
        assert len(all_indices(made)) == samples


def test_per_client_draws_at_random_from_samples_sorted_by_class():
    """Archives often list samples class by class: the first N would have few of the classes."""
    y, domain = np.tile(np.repeat(np.arange(5), 40), 2), np.repeat([0, 1], 200)
    dataset = labelled(y, test=np.zeros(400, dtype=bool), domain=domain, domains=("photo", "sketch"))
    spec = PartitionSpec(partition="domain", per_client=50, test="split", test_fraction=0.1)
    partition = make_partition(dataset, spec)
    assert [len(index) for index in partition.train] == [50, 50]
    for index in partition.train:
        assert np.bincount(y[index], minlength=5).min() >= 3
        assert (np.diff(index) > 0).all()
    other = make_partition(dataset, PartitionSpec(**{**vars(spec), "seed": 1}))
    assert set(other.train[0]) != set(partition.train[0])


def test_sizes_per_domain_are_shared_by_the_clients_of_a_domain():
    dataset = three_domains(sizes=(60, 40, 50), test_every=5)
    whole = make_partition(dataset, PartitionSpec(partition="domain", per_domain=24))
    assert [len(index) for index in whole.train] == [24, 24, 24]
    split = make_partition(dataset, PartitionSpec(partition="domain-split", clients=6, per_domain=24))
    assert [len(index) for index in split.train] == [12] * 6
    for domain in range(3):  # more clients mean less data each, of the same samples
        parts = np.concatenate(split.train[2 * domain : 2 * domain + 2])
        assert sorted(parts.tolist()) == sorted(whole.train[domain].tolist())
    everything = make_partition(dataset, PartitionSpec(partition="domain"))
    assert "per_domain" not in everything.settings
    assert [index.tolist() for index in whole.test] == [index.tolist() for index in everything.test]
    with pytest.raises(ConfigError, match="per_domain: only for partitions domain and domain-split, got 'iid'"):
        make_partition(dataset, PartitionSpec(partition="iid", per_domain=24))


def test_partitions_by_domain_hold_out_a_fifth():
    sizes = (958, 1123, 157, 295)  # Office-Caltech-10
    domains = ("amazon", "caltech", "dslr", "webcam")
    dataset = labelled(np.arange(sum(sizes)) % 10, domain=np.repeat(np.arange(4), sizes), domains=domains)
    made = make_partition(dataset, PartitionSpec(partition="domain"))
    assert [len(index) for index in made.train] == [766, 898, 125, 236]
    assert [len(index) for index in made.test] == [192, 225, 32, 59]
    label_skew = make_partition(dataset, PartitionSpec(partition="iid", clients=1))
    assert len(label_skew.test[0]) == pytest.approx(0.25 * sum(sizes), abs=1)


def test_office_home_holds_out_a_fifth_of_each_class_rounded_up():
    domain, y = np.repeat([0, 1], 60), np.tile(np.repeat([0, 1, 2], [13, 21, 26]), 2)
    dataset = replace(labelled(y, domain=domain, domains=("art", "clipart")), name="office-home")
    made = make_partition(dataset, PartitionSpec())
    assert [np.bincount(y[index]).tolist() for index in made.test] == [[3, 5, 6]] * 2
    whole = make_partition(dataset, PartitionSpec(test_by_class=False))
    assert [len(index) for index in whole.test] == [12, 12]
    with pytest.raises(ConfigError, match="test_by_class: only for partitions"):
        make_partition(dataset, PartitionSpec(partition="iid", test_by_class=True))


@pytest.mark.parametrize(("classes", "each"), [(10, 2), (100, 10)])
def test_pathological_clients_have_a_tenth_of_the_classes(classes, each):
    y = np.arange(classes * 60) % classes
    made = make_partition(labelled(y), PartitionSpec(partition="pathological"))
    found = [set(y[np.concatenate(both)]) for both in zip(made.train, made.test, strict=True)]
    assert {len(own) for own in found} == {each}
    assert set.union(*found) == set(range(classes))


def test_coarse_cifar100_is_split_by_superclass():
    coarse = replace(cifar100_like(), name="cifar100-coarse")
    assert make_partition(coarse, PartitionSpec(clients=5)).rule == "superclass"
    assert make_partition(replace(coarse, name="mine"), PartitionSpec(clients=5)).rule == "dirichlet"
