"""Every operator on sizes, memory layouts and dtypes that hypothesis draws, against the reference.

``make fuzz`` draws more of them, by ``PFL_FAST_EXAMPLES``.

Those of ``conv_relu_pool`` and ``orthogonal_project`` are in their own files.
"""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pfl_fast import ops
from tests.ops import (
    aggregate_entry,
    cpn_route_entry,
    distill_losses_entry,
    gumbel_mask_entry,
    mix_entry,
    mmd_rbf_entry,
    route_entry,
    sgd_entry,
    take_normalized_entry,
)
from tests.ops.operators import FLOATS, Sample
from tests.ops.test_contract import compare, inputs, reversed_in_memory, sliced_from_a_wider_block, with_gaps

pytestmark = pytest.mark.skipif(not ops.NATIVE.available, reason=f"no native library: {ops.NATIVE.problem}")


def sample(make, dtype, clients, rows, columns):
    """Returns a sample of C clients with [rows, columns] values each."""
    return Sample("drawn", make(dtype, clients, rows, columns))


def noisy(make, dtype, clients, rows, columns):
    return Sample("drawn", (*make(dtype, clients, rows, columns), torch.arange(clients)))


def aggregated(make, dtype, clients, rows, columns):
    return Sample("drawn", make(dtype, (clients,), (clients, rows), (clients, columns)))


def mixed(make, dtype, clients, rows, columns):
    shapes = ((rows, columns), (rows, columns), (columns,), (columns,))
    return Sample("drawn", make(dtype, (clients,), *shapes), {"segments": [0, clients - 1]})


def masked(make, dtype, clients, rows, columns):
    return Sample("drawn", make(dtype, (clients, rows, columns), list(range(clients))), {"hard": False})


def updated(make, dtype, clients, rows, columns):
    return Sample("drawn", make(dtype, (rows, columns), (clients,)), sgd_entry.EVERYTHING)


def taken(make, dtype, clients, rows, columns):
    index = torch.arange(clients).flip(0)
    return make("drawn", index, take_normalized_entry.image_set(clients, 2, columns, 1 + rows % 7), dtype)


DRAWN = {
    route_entry: (noisy, route_entry.make),
    cpn_route_entry: (noisy, cpn_route_entry.make),
    distill_losses_entry: (sample, distill_losses_entry.make),
    mmd_rbf_entry: (sample, mmd_rbf_entry.make),
    gumbel_mask_entry: (masked, gumbel_mask_entry.make),
    aggregate_entry: (aggregated, aggregate_entry.make),
    mix_entry: (mixed, mix_entry.make),
    sgd_entry: (updated, sgd_entry.make),
    take_normalized_entry: (taken, take_normalized_entry.sample),
}


@pytest.mark.parametrize("entry", DRAWN, ids=lambda entry: entry.OPERATOR.name)
@settings(max_examples=int(os.environ.get("PFL_FAST_EXAMPLES", "25")), deadline=None)
@given(
    clients=st.integers(1, 3),
    rows=st.integers(1, 40),
    columns=st.one_of(st.integers(1, 70), st.integers(500, 1100)),
    dtype=st.sampled_from(FLOATS),
    layout=st.sampled_from([torch.clone, with_gaps, reversed_in_memory, sliced_from_a_wider_block]),
)
def test_any_size_equals_the_reference(entry, clients, rows, columns, dtype, layout):
    operator, (draw, make) = entry.OPERATOR, DRAWN[entry]
    given_sample = draw(make, dtype, clients, rows, columns)
    mine = [layout(t.detach()).requires_grad_(t.requires_grad) for t in inputs(given_sample, requires_grad=True)]
    theirs = inputs(given_sample, requires_grad=True)
    if not operator.differentiable:
        mine, theirs = [t.detach() for t in mine], [t.detach() for t in theirs]
    actual = operator.call(*mine, **given_sample.options)
    expected = operator.reference(*theirs, **given_sample.options)
    compare(actual, expected, "values")
    if operator.differentiable:
        sum(a.sum() for a in actual).backward()
        sum(e.sum() for e in expected).backward()
        pairs = [(m.grad, t.grad) for m, t in zip(mine, theirs, strict=True) if m.requires_grad]
        compare([m for m, _ in pairs], [t for _, t in pairs], "gradients")
