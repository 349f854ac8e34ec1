import json
import pickle

import numpy as np
import pytest
from click.testing import CliRunner

from pfl_fast import Dataset
from pfl_fast.cli.data_exchange import export, import_
from pfl_fast.cli.data_plot import partition, plot
from pfl_fast.cli.data_show import show
from pfl_fast.data.cache import imported_folder, save_dataset
from pfl_fast.data.partition import Partition
from pfl_fast.data.pfllib import import_pfllib
from pfl_fast.errors import ConfigError, DataError


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a command in an empty folder; errors the user can act on are raised."""
    monkeypatch.chdir(tmp_path)

    def invoke(command, *arguments):
        result = CliRunner().invoke(command, list(map(str, arguments)))
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.output

    return invoke


def test_show_prints_sizes_and_draws_a_sheet(run, tmp_path):
    page = run(show, "digits")
    assert "1797" in page
    assert "digits.png" in page
    assert (tmp_path / "digits.png").read_bytes().startswith(b"\x89PNG")
    facts = json.loads(run(show, "digits", "--json", "--out", "other.png"))
    assert (facts["samples"], len(facts["classes"]), facts["picture"]) == (1797, 10, "other.png")
    assert sum(facts["classes"].values()) == 1797


def test_a_partition_is_saved_and_drawn(run, tmp_path):
    made = run(partition, "digits", "--clients", 5, "--seed", 3, "--out", "saved")
    loaded = Partition.load(tmp_path / "saved")
    assert loaded.hash in made
    assert (loaded.rule, loaded.clients, loaded.settings["seed"]) == ("dirichlet", 5, 3)
    assert loaded.hash in run(plot, "saved", "--out", "saved.png")
    assert loaded.hash in run(plot, "digits", "--clients", 5, "--seed", 3, "--out", "named.png")
    assert (tmp_path / "saved.png").read_bytes() == (tmp_path / "named.png").read_bytes()
    with pytest.raises(DataError, match="saved already exists"):
        run(partition, "digits", "--out", "saved")
    with pytest.raises(ConfigError, match=r"leave out the partition options \(--clients\)"):
        run(plot, "saved", "--clients", 5, "--out", "saved.png")


def test_a_partition_of_other_data_is_not_drawn(run, tmp_path):
    run(partition, "digits", "--clients", 5, "--out", "saved")
    loaded = Partition.load(tmp_path / "saved")
    smaller = Partition(loaded.rule, loaded.settings | {"samples": 5}, loaded.train, loaded.test, loaded.validation)
    smaller.save(tmp_path / "saved")
    with pytest.raises(DataError, match="but digits has 1797"):
        run(plot, "saved", "--out", "saved.png")


def test_exported_clients_can_be_imported(run, tmp_path):
    said = run(export, "digits", "out", "--partition", "pathological", "--clients", 10, "--classes-per-client", 2)
    assert "10 clients" in said
    assert len(import_pfllib(tmp_path / "out").natural) == 10
    assert "mine: 1797 samples (images), 10 classes, 10 clients" in run(import_, "out", "--name", "mine")
    facts = json.loads(run(show, "mine", "--json"))
    assert (facts["source"], facts["clients"], facts["samples"]) == ("imported", 10, 1797)
    assert run(plot, "mine", "--out", "mine.png").startswith("natural: 10 clients")
    with pytest.raises(DataError, match="already exists"):
        run(import_, "out", "--name", "mine")


def test_imports_go_to_the_data_dir(run, tmp_path):
    run(export, "digits", "out", "--clients", 3)
    with pytest.raises(DataError, match="the data folder elsewhere does not exist"):
        run(import_, "out", "--data-dir", "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    run(import_, "out", "--data-dir", "elsewhere")
    assert np.load(tmp_path / "elsewhere" / "imported" / "out" / "y.npy").shape == (1797,)
    assert "1797" in run(show, "out", "--data-dir", "elsewhere")


def test_fl_bench_partitions_are_imported_and_trained_on(run, cli, tmp_path):
    clients = [{"train": np.arange(0, 20), "val": [], "test": np.arange(20, 30)}, {"train": [40, 41], "test": [42]}]
    (tmp_path / "digits").mkdir()
    (tmp_path / "digits" / "partition.pkl").write_bytes(pickle.dumps({"separation": {}, "data_indices": clients}))
    said = run(import_, "digits", "--format", "fl-bench", "--out", "saved")
    loaded = Partition.load(tmp_path / "saved")
    assert "natural: 2 clients with 2 to 20 training samples" in said
    assert [index.tolist() for index in (*loaded.train, *loaded.test)][1:] == [[40, 41], [*range(20, 30)], [42]]
    cli("train", "local", "--dataset", "digits", "--partition", "saved", "--rounds", 1, "--out", "run")
    assert Partition.load(tmp_path / "run" / "partition").hash == loaded.hash
    with pytest.raises(DataError, match="saved already exists"):
        run(import_, "digits", "--format", "fl-bench", "--out", "saved")
    with pytest.raises(ConfigError, match="say --out FOLDER"):
        run(import_, "digits", "--format", "fl-bench")
    with pytest.raises(ConfigError, match="--dataset and --out are options of --format fl-bench, not of pfllib"):
        run(import_, "digits", "--dataset", "digits")


def test_mistakes_are_named(run):
    with pytest.raises(DataError, match="mnist is a data set of the catalogue"):
        run(import_, "nowhere", "--name", "mnist")
    with pytest.raises(DataError, match="nowhere/train: no client's files"):
        run(import_, "nowhere")
    with pytest.raises(AssertionError, match="'pflib' is not one of 'pfllib', 'fl-bench'"):
        run(import_, "nowhere", "--format", "pflib")
    with pytest.raises(ConfigError, match="did you mean 'dirichlet'"):
        run(plot, "digits", "--partition", "dirichelt", "--out", "x.png")
    with pytest.raises(DataError, match="did you mean 'digits'"):
        run(show, "digist")


@pytest.mark.parametrize("command", [show, import_, export, partition, plot])
def test_help_has_examples(run, command):
    assert "Examples:" in run(command, "--help")


def test_own_files_are_data_sets(cli, tmp_path):
    rows = [f"{i / 10},{i % 2},{'ab'[i // 20]}" for i in range(40)]
    (tmp_path / "mine.csv").write_text("\n".join(["height,label,client", *rows]))
    shown = cli("data", "show", "mine.csv").output
    assert "clients                2: a 20, b 20" in shown
    output = cli("train", "fedavg", "--dataset", "mine.csv", "--model", "mlp", "--rounds", "1").output
    assert "natural, 2 clients (a, b) with 15 to 15 training samples" in output
    names = [line.split(",")[2] for line in (tmp_path / "runs/fedavg-mine-1/clients.csv").read_text().splitlines()]
    assert names == ["client_name", "a", "b"]
    cli("data", "plot", "runs/fedavg-mine-1/partition", "--out", "plot.png")
    (tmp_path / "mine.csv").write_text("\n".join(["height,label,client", *reversed(rows)]))
    refused = cli("resume", "runs/fedavg-mine-1", "--rounds", "2", exit_code=1)
    assert "data_hash" in refused.output


def test_imported_data_sets_are_listed_and_suggested(cli):
    save_dataset(Dataset("my-set", [[0.5], [1.5]], [0, 1], source="imported"), imported_folder("my-set"))
    assert "my-set" in cli("datasets").output
    assert json.loads(cli("datasets", "--json").output)["my-set"]["samples"] == 2
    assert "did you mean 'my-set'" in cli("data", "show", "mysset", exit_code=2).output
