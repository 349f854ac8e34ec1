"""Tests specific to ``aggregate``: counts of non-finite values, out=, state dicts."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pfl_fast import ops
from pfl_fast.ops import reference
from pfl_fast.testing import assert_close, same_bits
from tests.ops.operators import both_implementations


@both_implementations
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("weights", [(3,), (20, 3)])
def test_nonfinite_values_are_counted_per_client(implementation, dtype, weights):
    a, b = torch.zeros(3, 5000, dtype=dtype), torch.zeros(3, 2, 2, dtype=dtype)
    a[1, 4999] = b[1, 0, 0] = float("nan")
    a[2, :7] = -float("inf")
    a[0] = torch.finfo(dtype).max  # the largest finite value
    with ops.use(implementation):
        _, counts = ops.aggregate_checked([a, b], torch.ones(weights))
    assert counts.tolist() == [0, 2, 7]


@both_implementations
def test_out_is_written_and_returned(implementation):
    x, w = torch.randn(4, 3, 5), torch.rand(2, 4)
    fresh = ops.aggregate(x, w)
    for out in (torch.empty(2, 3, 5), torch.empty(2, 5, 3).transpose(1, 2)):
        with ops.use(implementation):
            result = ops.aggregate(x, w, out=out)
        assert result is out
        assert_close(out, fresh)


def test_out_does_not_allocate():
    x, w = torch.randn(4, 1000), torch.rand(4)
    out = torch.empty(1000)
    pointer = out.data_ptr()
    with torch.profiler.profile(profile_memory=True) as profile:
        ops.aggregate(x, w, out=out)
    largest = max((event.cpu_memory_usage for event in profile.events()), default=0)
    assert largest < out.numel() * out.element_size()
    assert out.data_ptr() == pointer


def test_the_mean_of_two_equal_clients_is_exact():
    x = torch.randn(100)
    assert same_bits(ops.aggregate(x.expand(2, 100), torch.tensor([0.5, 0.5])), x)


@settings(max_examples=60, deadline=None)
@given(
    clients=st.integers(0, 40),
    numels=st.lists(st.integers(0, 5000), max_size=5),
    mixtures=st.integers(0, 20) | st.none(),
)
def test_any_size_equals_the_reference(clients, numels, mixtures):
    stacked = [torch.randn(clients, n) for n in numels]
    weights = torch.randn(clients) if mixtures is None else torch.randn(mixtures, clients)
    for mine, theirs in zip(ops.aggregate(stacked, weights), reference.aggregate(stacked, weights), strict=True):
        assert_close(mine, theirs, scale=max(1, clients))


@settings(max_examples=60, deadline=None)
@given(
    clients=st.integers(1, 9),
    columns=st.integers(1, 300) | st.sampled_from([4095, 4097, 4500]),
    mixtures=st.integers(2, 11),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
)
def test_each_mixture_has_the_bits_of_its_own_sum(clients, columns, mixtures, dtype):
    x, weights = torch.randn(clients, columns).to(dtype), torch.randn(mixtures, clients)
    alone = torch.stack([ops.aggregate(x, w) for w in weights])
    assert same_bits(ops.aggregate(x, weights), alone)
    assert same_bits(ops.aggregate_checked(x, weights)[0], alone)


def test_results_of_several_huge_pages_have_the_bits_of_given_tensors():
    x, weights = torch.randn(2, 1_600_003), torch.randn(3, 2)
    assert same_bits(ops.aggregate(x, weights), ops.aggregate(x, weights, out=torch.empty(3, 1_600_003)))


class TestStateDicts:
    def dicts(self, count=3):
        models = [torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3)) for _ in range(count)]
        for steps, model in enumerate(models, 1):
            for _ in range(steps):
                model(torch.randn(8, 4))
        return [model.state_dict() for model in models]

    @both_implementations
    def test_floats_are_summed_and_counters_come_from_the_first(self, implementation):
        dicts = self.dicts()
        weights = [0.5, 0.3, 0.2]
        with ops.use(implementation):
            result = ops.aggregate_state_dicts(dicts, weights)
        assert list(result) == list(dicts[0])
        assert result["1.num_batches_tracked"].item() == 1
        assert result["1.num_batches_tracked"] is not dicts[0]["1.num_batches_tracked"]
        for name, tensor in result.items():
            if tensor.is_floating_point():
                expected = sum(w * d[name] for w, d in zip(weights, dicts, strict=True))
                assert_close(tensor, expected, name)
        torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3)).load_state_dict(result)

    def test_mixed_dtypes(self):
        dicts = [{"a": torch.full((2,), float(n)), "b": torch.full((3,), float(n)).double()} for n in (1, 3)]
        result = ops.aggregate_state_dicts(dicts, torch.tensor([0.5, 0.5]))
        assert result["a"].tolist() == [2, 2]
        assert result["b"].tolist() == [2, 2, 2]
        assert (result["a"].dtype, result["b"].dtype) == (torch.float32, torch.float64)

    def test_equals_aggregating_stacked_tensors_to_the_bit(self):
        dicts, weights = self.dicts(7), torch.rand(7)
        result = ops.aggregate_state_dicts(dicts, weights)
        for name in ("0.weight", "1.running_var"):
            assert same_bits(result[name], ops.aggregate(torch.stack([d[name] for d in dicts]), weights))

    def test_parameters_receive_gradients(self):
        dicts = [{"w": torch.randn(3, requires_grad=True)} for _ in range(2)]
        ops.aggregate_state_dicts(dicts, [0.25, 0.75])["w"].sum().backward()
        assert [d["w"].grad.tolist() for d in dicts] == [[0.25] * 3, [0.75] * 3]

    def test_vmap(self):
        rows, weights = [torch.randn(6, 4) for _ in range(3)], torch.rand(6, 3)

        def one(a, b, c, w):
            return ops.aggregate_state_dicts([{"x": a}, {"x": b}, {"x": c}], w)["x"]

        actual = torch.vmap(one)(*rows, weights)
        assert_close(actual, torch.stack([one(*[r[i] for r in rows], weights[i]) for i in range(6)]))

    @pytest.mark.parametrize(
        ("dicts", "weights", "message"),
        [
            ([], [], "state_dicts must hold at least one"),
            (
                [{"a": torch.ones(1)}, {"b": torch.ones(1)}],
                [1, 1],
                r"state_dicts\[1\] must have the keys.*\['a', 'b'\]",
            ),
            (
                [{"a": torch.ones(1)}, {"a": torch.ones(2)}],
                [1, 1],
                r"state_dicts\[1\]\['a'\] must be like.*got .*\[2\]",
            ),
            ([{"a": torch.ones(1)}, {"a": 3}], [1, 1], r"state_dicts\[1\]\['a'\] must be a tensor, got int"),
            ([{"a": torch.ones(1)}], [1, 2], "weights must have 1 entries.*got shape"),
            ([{"a": torch.ones(1)}], [float("nan")], "weights must be finite"),
        ],
    )
    def test_bad_input(self, dicts, weights, message):
        with pytest.raises((ValueError, TypeError, RuntimeError), match=message):
            ops.aggregate_state_dicts(dicts, weights)
