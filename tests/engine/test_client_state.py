import errno
import os
import subprocess
import sys

import pytest
import torch

from pfl_fast.engine.state.client_state import ClientState
from pfl_fast.engine.state.part_table import PartTable
from pfl_fast.errors import PflFastError
from pfl_fast.methods import METHODS
from pfl_fast.methods.base import Method, RunContext, client_buffer, personal, shared
from tests.engine import small_experiments as small


class Example(Method):
    """Shared extractor, personal head, and a buffer that holds the arguments of the hooks."""

    def parts(self, backbone):
        return {
            "extractor": shared(backbone.extractor, "extractor"),
            "head": personal(backbone.head),
            "note": client_buffer(Note()),
        }

    def initial(self, common, _number, seed):
        return {"note.seed": seed % 1000 + 0 * common["note.seed"]}

    def on_receive(self, client, at):
        return {"note.sum": client["extractor.1.bias"].sum() + (100 if at == "end" else 0)}


class Note(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seed", torch.zeros((), dtype=torch.int64))
        self.register_buffer("sum", torch.zeros(()))


def new_client_state(folder=None, clients=3, everyone_receives=False, momentum=None):
    method = Example(None, RunContext(clients, 1, 1, small.CLASSES))
    part_table = PartTable(method.parts(small.plain()), "shared", everyone_receives, momentum=momentum)
    return ClientState(part_table, method, clients, 0, folder)


@pytest.fixture(params=["memory", "disk"])
def folder(request, tmp_path):
    return None if request.param == "memory" else tmp_path / "blocks"


def test_clients_start_from_common_values_and_the_results_of_their_hooks(folder):
    state = new_client_state(folder)
    rows = [state.row(client) for client in range(3)]
    assert not state.touched.any()
    assert all(torch.equal(row["head.weight"], state.part_table.common["head.weight"]) for row in rows)
    assert len({int(row["note.seed"]) for row in rows}) == 3
    expected = state.part_table.common["extractor.1.bias"].sum()
    assert all(torch.equal(row["note.sum"], expected) for row in rows), "the hook has been called"


def test_writing_a_row_changes_no_other_row(folder):
    state = new_client_state(folder)
    before = {name: value.clone() for name, value in state.row(0).items()}
    state.write(1, {"head.bias": torch.tensor([1.0, 2, 3]), "not a stored name": torch.zeros(1)})
    assert state.touched.tolist() == [False, True, False]
    assert state.row(1)["head.bias"].tolist() == [1, 2, 3]
    assert torch.equal(state.row(1)["head.weight"], before["head.weight"]), "the rest of the row has been filled in"
    assert small.differences(state.row(0), before, 0) == {}


def test_clients_that_do_not_receive_keep_their_values(folder):
    state = new_client_state(folder)
    server = {name: torch.full_like(value, 7) for name, value in state.part_table.server_common.items()}
    stale, fresh = state.view(2, server, receives=False), state.view(2, server)
    assert torch.equal(stale["extractor.1.bias"], state.part_table.common["extractor.1.bias"])
    assert (fresh["extractor.1.bias"] == 7).all()
    assert fresh["note.sum"] == 7 * 5
    assert torch.equal(stale["head.bias"], fresh["head.bias"])
    assert not state.touched.any(), "a view writes nothing"


def test_send_stores_the_received_values(folder):
    state = new_client_state(folder)
    server = {name: torch.full_like(value, 7) for name, value in state.part_table.server_common.items()}
    state.store_received([0, 2], server)
    newer = {name: torch.full_like(value, 8) for name, value in server.items()}
    assert [float(state.view(c, newer, receives=False)["note.sum"]) for c in (0, 2)] == [135, 135]
    assert (state.view(0, newer, receives=False)["extractor.1.weight"] == 7).all()
    assert torch.equal(state.row(1)["extractor.1.weight"], state.part_table.common["extractor.1.weight"])


def test_tensors_received_by_all_clients_are_not_stored(folder):
    state = new_client_state(folder, everyone_receives=True)
    assert set(state.blocks) == {"head.weight", "head.bias", "note.seed", "note.sum"}
    server = {name: torch.full_like(value, 7) for name, value in state.part_table.server_common.items()}
    assert (state.view(1, server, receives=False)["extractor.1.bias"] == 7).all()


def test_momentum_is_stored_or_starts_from_zero():
    kept, fresh = new_client_state(momentum="kept"), new_client_state(momentum="round")
    assert "momentum.head.bias" in kept.blocks
    assert "momentum.head.bias" not in fresh.blocks
    for state in (kept, fresh):
        trained = {name: value + 1 for name, value in state.view(0, state.part_table.new_server()).items()}
        state.write(0, trained)
    assert (kept.view(0, kept.part_table.new_server())["momentum.head.bias"] == 1).all()
    assert (fresh.view(0, fresh.part_table.new_server())["momentum.head.bias"] == 0).all()


def test_files_are_sparse_and_deleted_on_close(tmp_path):
    folder = tmp_path / "blocks"
    state = new_client_state(folder, clients=20_000)
    state.write(19_999, {"head.bias": torch.ones(3)})
    file = folder / "head.weight.block"
    assert file.stat().st_size == 20_000 * 15 * 4
    assert file.stat().st_blocks * 512 < 64 * 1024, "one row has been written"
    state.close()
    assert not folder.exists()


@pytest.mark.parametrize("method", METHODS)
def test_training_does_not_change_common_values(method):
    """Clients share the tensors of the server and the common values, and copy them before an update."""
    running = small.experiment(method, momentum=0.9, model=small.with_batch_norm(), batch_norm="shared")
    common = {name: value.clone() for name, value in running.part_table.common.items()}
    running.run()
    assert small.differences(running.part_table.common, common, 0) == {}
    assert small.differences(running.part_table.new_server(), running.part_table.server_common, 0) == {}
    running.close()


@pytest.mark.parametrize("method", METHODS)
def test_unselected_clients_do_not_change(method):
    """The stored tensors of a client change only in rounds in which the client trains."""
    running = small.experiment(method, join_ratio=0.4, train_all=False, rounds=4, momentum=0.5, keep_momentum=True)
    clients = running.round.state.clients
    before = [dict(clients.row(c)) for c in range(len(small.RAGGED))]
    before = [{name: value.clone() for name, value in row.items()} for row in before]
    for record in running.rounds():
        selected = {c for c, row in enumerate(before) if small.differences(clients.row(c), row, 0)}
        expected = 1 if running.round.pools_data(record["round"]) else 2
        assert len(selected) == (len(small.RAGGED) if running.round.is_final_round(record["round"]) else expected)
        before = [
            {n: v.clone() for n, v in running.round.state.clients.row(c).items()} for c in range(len(small.RAGGED))
        ]
    running.close()


def test_uploads_reuse_the_memory_of_the_previous_round():
    running = small.experiment("fedavg", rounds=3)
    addresses = []
    for _ in running.rounds():
        uploads = running.round.upload_memory
        addresses.append({name: block.data_ptr() for name, block in uploads.items()})
        assert all(len(block) == running.data.clients for block in uploads.values())
    assert addresses[0] == addresses[1] == addresses[2] != {}
    running.close()


class Devices(Example):
    """Records the devices that ``on_receive`` sees."""

    def on_receive(self, client, at):
        self.seen = {client[name].device.type for name in client}
        return {}


def test_on_receive_sees_one_device():
    method = Devices(None, RunContext(1, 1, 1, small.CLASSES))
    part_table = PartTable(method.parts(small.plain()), "shared", False)
    server = {name: tensor.to("meta") for name, tensor in part_table.new_server().items()}
    view = ClientState(part_table, method, 1, 0).view(0, server)
    assert method.seen == {"meta"}
    assert view["head.weight"].device.type == "cpu", "tensors that are not returned are not copied"


def test_rows_on_disk_take_up_space_when_they_are_first_written(tmp_path, monkeypatch):
    reserved = []
    monkeypatch.setattr(os, "posix_fallocate", lambda _fd, begin, size: reserved.append((begin, size)))
    state = new_client_state(tmp_path / "blocks", clients=1000)
    sizes = [block[0].nbytes for block in state.blocks.values()]
    assert not reserved
    state.write(7, {})
    assert reserved == [(7 * size, size) for size in sizes]
    state.write(7, {})
    state.write_stack([7, 9], {name: block[:2].clone() for name, block in state.blocks.items()})
    assert reserved[len(sizes) :] == [(9 * size, size) for size in sizes]


def test_a_file_that_cannot_be_mapped_is_an_error(tmp_path, monkeypatch):
    def refused(*_, **__):
        raise RuntimeError("unable to open file in read-write mode: Input/output error (5)")

    monkeypatch.setattr(torch, "from_file", refused)
    with pytest.raises(PflFastError, match=r"block: cannot be mapped \(.*Input/output error"):
        new_client_state(tmp_path / "blocks")


def test_a_full_disk_is_an_error_before_anything_is_written(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    state = new_client_state(tmp_path / "blocks")
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(PflFastError, match=r"block: no space for the state of 1 more clients \(No space left"):
        state.write(1, {})
    assert not state.touched.any()


FULL_DISK = """
import sys
from pathlib import Path
from pfl_fast.errors import PflFastError
from tests.engine import small_experiments as small
try:
    experiment = small.experiment("ditto", out=Path(sys.argv[1], "run"), state="disk", model=small.plain(6, 40000))
    experiment.run()
except PflFastError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_full_file_system_does_not_kill_the_run(tmp_path):
    """On a file system of 4 MiB; a write through a memory map without reserved space would be a bus error."""
    mount = f"mount -t tmpfs -o size=4m none {tmp_path} && "
    if subprocess.run(["unshare", "-rm", "sh", "-c", mount + "true"], capture_output=True).returncode:
        pytest.skip("no permission to mount a file system")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "CODE": FULL_DISK}
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", f'{mount} exec {sys.executable} -c "$CODE" {tmp_path}'],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "No space left on device" in done.stdout
    assert "pfl-fast-" in done.stdout, "the state lies below the run folder"
