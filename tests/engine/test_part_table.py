import pytest
import torch
from torch import nn

from pfl_fast.engine.state.part_table import PartTable
from pfl_fast.errors import ConfigError
from pfl_fast.methods.base import client_buffer, frozen, personal, shared
from pfl_fast.models import batch_norm_tensors
from tests.engine import small_experiments as small

STATISTICS = {"2.running_mean", "2.running_var", "2.num_batches_tracked"}
AFFINE = {"2.weight", "2.bias"}
REST = {"1.weight", "1.bias"}


def part_table_of(batch_norm="shared", everyone_receives=False, recipients="selected", **options):
    model = small.with_batch_norm()
    parts = {
        "extractor": shared(model.extractor, "extractor", recipients),
        "copy": frozen(model.extractor, "extractor"),
        "head": personal(model.head),
        "fixed": client_buffer(nn.BatchNorm1d(2)),
    }
    return PartTable(parts, batch_norm, everyone_receives, **options)


def names(specs, part):
    return {e.key.removeprefix(part + ".") for e in specs if e.part == part}


@pytest.mark.parametrize(
    ("policy", "exchanged"),
    [
        ("shared", REST | AFFINE | STATISTICS),
        ("params_shared_buffers_local", REST | AFFINE),
        ("personal", REST),
    ],
)
def test_which_tensors_of_batch_norm_are_exchanged(policy, exchanged):
    part_table = part_table_of(policy)
    assert names(part_table.uploaded, "extractor") == exchanged
    assert names(part_table.received, "extractor") == names(part_table.received, "copy") == exchanged
    assert part_table.server_has_statistics == (policy == "shared")


def test_which_parts_are_uploaded_and_received():
    part_table = part_table_of()
    assert {e.part for e in part_table.uploaded} == {"extractor"}
    assert {e.part for e in part_table.received} == {"extractor", "copy"}
    assert {e.receive_from for e in part_table.received} == {e.upload_to for e in part_table.uploaded}
    assert set(part_table.new_server()) == {f"extractor.{name}" for name in REST | AFFINE | STATISTICS}


@pytest.mark.parametrize(
    ("options", "stored"),
    [
        ({}, {"extractor", "copy", "head", "fixed"}),
        ({"recipients": "all"}, {"copy", "head", "fixed"}),
        ({"everyone_receives": True}, {"head", "fixed"}),
    ],
)
def test_which_parts_are_stored(options, stored):
    part_table = part_table_of(**options)
    assert {e.part for e in part_table.stored} == stored
    assert part_table.bytes_per_client() == sum(e.value.nbytes for e in part_table.specs if e.part in stored)


def test_local_tensors_are_stored_even_if_all_clients_receive():
    part_table = part_table_of("personal", everyone_receives=True)
    assert names(part_table.stored, "extractor") == names(part_table.stored, "copy") == AFFINE | STATISTICS


def test_only_trained_parameters_have_momentum():
    part_table = part_table_of(momentum="kept")
    found = {e.key for e in part_table.specs if e.part == "momentum"}
    trained = {f"extractor.{name}" for name in REST | AFFINE} | {"head.weight", "head.bias"}
    assert found == {f"momentum.{name}" for name in trained}
    assert all((part_table.common[name] == 0).all() for name in found)
    assert found <= {e.key for e in part_table.stored}
    fresh = part_table_of(momentum="round")
    assert not found & {e.key for e in fresh.stored}
    assert not any(e.part == "momentum" for e in part_table_of().specs)


def test_parameters_and_buffers_are_distinguished_and_converted():
    part_table = part_table_of(dtype=torch.float64)
    by_key = {e.key: e for e in part_table.specs}
    assert by_key["extractor.2.weight"].parameter
    assert not by_key["extractor.2.running_mean"].parameter
    assert by_key["extractor.2.running_mean"].value.dtype == torch.float64
    assert by_key["extractor.2.num_batches_tracked"].value.dtype == torch.int64


def test_clients_share_no_memory():
    """The given model, the table and new clients each have their own memory."""
    model = small.plain()
    part_table = PartTable({"head": personal(model.head)}, "shared", False)
    one, other = part_table.new_client(torch.device("cpu")), part_table.new_client(torch.device("cpu"))
    addresses = {m.weight.data_ptr() for m in (model.head, part_table.client.head, one.head, other.head)}
    assert len(addresses) == 4
    assert part_table.common["head.weight"].data_ptr() == part_table.client.head.weight.data_ptr(), "stored once"


def test_one_parameter_under_two_names_is_refused():
    """Every name is stored as its own tensor, so tied parameters would silently diverge."""
    tied = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    tied[1].weight = tied[0].weight
    with pytest.raises(ConfigError, match=r"extractor\.1\.weight is another parameter under a second name"):
        PartTable({"extractor": shared(tied, "extractor")}, "shared", False)


def test_batch_norm_is_found_by_type_not_by_name():
    misnamed = nn.ModuleDict({"bn": nn.Linear(2, 2), "downsample": nn.Sequential(nn.Identity(), nn.BatchNorm1d(2))})
    assert {name.split(".")[0] for name in batch_norm_tensors(misnamed)} == {"downsample"}
    part_table = PartTable({"extractor": shared(misnamed, "extractor")}, "personal", False)
    assert names(part_table.uploaded, "extractor") == {"bn.weight", "bn.bias"}
