"""Recipes: every name in them exists, their layers, numbers and scales are those written by hand here."""

from dataclasses import fields, replace
from functools import cache
from types import SimpleNamespace

import pytest

from pfl_fast.assembly import method_context, model_options, resolve
from pfl_fast.comparison.recipes import Expected, load_recipe, recipe_names
from pfl_fast.config import Settings
from pfl_fast.data.catalogue import DATASETS
from pfl_fast.data.partition import make_partition
from pfl_fast.data.partition_spec import PartitionSpec
from pfl_fast.data.stand_in import stand_in
from pfl_fast.errors import ConfigError
from pfl_fast.methods import METHODS
from pfl_fast.models import MODELS, build
from pfl_fast.options import convert

NAMES = recipe_names()
PAPERS = ("fedafk", "fedcp", "fedios", "fedpick", "partialfed")


def column_of(recipe, name):
    return next(column for column in recipe.columns if column.name == name)


def row_of(recipe, name):
    return next(row for row in recipe.rows if row.name == name)


def values(name, column, row):
    """Settings and options of one run of a recipe."""
    recipe = load_recipe(name)
    found = column_of(recipe, column)
    return {**recipe.settings(found), **recipe.row_values(row_of(recipe, row), found)}


def test_every_paper_has_recipes():
    assert {name.partition("/")[0] for name in NAMES} == set(PAPERS)
    assert len(NAMES) == len(set(NAMES)) == 32
    assert NAMES.index("fedcp/table2") < NAMES.index("fedcp/table10")


@cache
def backbone(model, options):
    shape, classes, vocabulary = MODELS[model].typical
    chosen = {name: value for name, value in model_options(options).items() if name != "pretrained"}
    return build(model, input_shape=shape, classes=classes, vocabulary=vocabulary, **chosen)


@pytest.mark.parametrize("name", NAMES)
def test_methods_accept_their_options(name):
    recipe = load_recipe(name)
    for column in recipe.columns:
        request = recipe.request(column, recipe.rows, (0,), {})
        assert request.rows
        for row in request.rows:
            resolved = resolve(METHODS[row.method], {**request.values, **row.values}, request.values["model"])
            settings = resolved.settings
            data = SimpleNamespace(classes=range(4))
            model = backbone(settings.model, settings.model_options)
            context = method_context(data, SimpleNamespace(clients=2), settings, resolved.method, model, settings.model)
            method = resolved.method(resolved.options, context)
            if row.method == "partialfed-fix":
                assert method.parts(model)  # finds the strategy


@cache
def generated(dataset):
    return stand_in(dataset, 8, 6000, 0)


@pytest.mark.parametrize("name", NAMES)
def test_partitions_fit_the_data_sets(name):
    recipe = load_recipe(name)
    for column in recipe.columns:
        known = {f.name for f in fields(PartitionSpec)}
        spec = PartitionSpec(
            **convert(PartitionSpec, {n: v for n, v in recipe.settings(column).items() if n in known}, [])
        )
        if (spec.clients or 0) > 20:
            spec = replace(spec, clients=20, draw_clients=None)  # the generated data is small
        dataset = generated(recipe.settings(column)["dataset"])
        partition = make_partition(dataset, replace(spec, min_samples=2))
        assert partition.clients == spec.clients or partition.clients == len(dataset.domains)


@pytest.mark.parametrize("name", NAMES)
def test_domains_are_those_of_the_data_set(name):
    recipe = load_recipe(name)
    for column in recipe.columns:
        if column.domains:
            assert DATASETS[recipe.settings(column)["dataset"]].domains == len(column.domains)
            assert recipe.protocol in ("fedpick", "partialfed")


@pytest.mark.parametrize(
    ("name", "row", "column", "domain", "mean", "deviation"),
    [  # written by hand from the specification, sections 7.1 to 7.20
        ("fedcp/table2", "fedavg", "mnist", "", 98.81, 0.01),
        ("fedcp/table2", "fedcp", "path-cifar100", "", 71.80, 0.16),
        ("fedcp/table2", "ditto", "cifar10", "", 90.59, 0.01),
        ("fedcp/table2", "fedphp", "tiny", "", 35.69, 3.26),
        ("fedcp/table2", "fedcp", "tiny-resnet18", "", 44.18, 0.21),
        ("fedcp/table2", "fedrep", "agnews", "", 96.28, 0.14),
        ("fedcp/table1", "wo-cpn-gh", "tiny-resnet18", "", 35.44, 0.78),
        ("fedcp/table4", "fedcp", "cifar100-500", "", 35.87, 0.52),
        ("fedcp/table3", "ditto", "tiny-resnet18", "", 11.78, None),
        ("fedafk/table4", "fedfomo", "path-cifar100", "", 148, None),
        ("fedcp/table8", "lam=50", "beta0.01", "", 9.73, 0.02),
        ("fedcp/table10", "cpn_act=sigmoid", "resnet18", "", 44.69, None),
        ("fedpick/table2", "fedpick", "digits5", "MNIST_M", 89.60, 0.34),
        ("fedpick/table2", "local", "office-caltech10", "dslr", 98.75, 1.53),
        ("fedpick/table2", "fedbn", "domainnet", "sketch", 63.03, 0.63),
        ("fedpick/table4", "share-pfsm", "digits5", "SVHN", 84.28, 0.24),
        ("fedafk/table3", "fedala", "path-mnist", "", 99.86, None),
        ("fedafk/table1", "lam=0.3", "cifar100", "", 57.88, None),
        ("fedafk/table2", "mu_init=1.0", "cifar100", "", 45.84, None),
        ("fedafk/table5", "wo-kt", "cifar10", "", 89.10, None),
        ("fedios/table1", "pfedvem", "office-12", "", 58.86, 2.47),
        ("fedios/table2", "fedcp", "cifar100-5", "", 41.63, 0.52),
        ("fedios/table3", "fedios", "20-rate0.6", "", 51.51, 2.10),
        ("fedios/table4", "fedbn", "epochs-3", "", 86.83, 0.29),
        ("fedios/table5", "lam=50", "office-4", "", 71.87, 0.99),
        ("fedios/table6", "fedrod", "densenet121", "", 83.75, 0.92),
        ("fedios/table7", "wo-lre", "domainnet-12", "", 36.32, 0.86),
        ("partialfed/tables1-3", "wo_bn_fc", "office-home", "Clipart", 74.33, None),
        ("partialfed/table4", "layer", "office-home", "Real World", 82.05, None),
    ],
)
def test_numbers_of_the_papers(name, row, column, domain, mean, deviation):
    assert load_recipe(name).numbers[row, column, domain] == Expected(mean, deviation)


def test_means_over_domains_are_those_of_the_domains_that_there_are():
    recipe = load_recipe("fedpick/table2")
    digits = column_of(recipe, "digits5")
    assert recipe.expected("fedpick", digits, digits.domains).mean == pytest.approx(92.09, abs=0.005)
    four = ["MNIST_M", "MNIST", "USPS", "SVHN"]
    assert recipe.expected("fedpick", digits, four).mean == pytest.approx((89.60 + 97.81 + 98.81 + 82.87) / 4)
    assert recipe.expected("fedpick", digits, []) is None


def test_times_are_relative_to_fedavg():
    recipe = load_recipe("fedafk/table4")
    assert recipe.expected("fedafk", recipe.columns[0]) == Expected(178 / 83)


def test_methods_have_the_options_of_each_paper():
    assert values("fedcp/table2", "mnist", "fedcp")["lam"] == 5
    assert values("fedcp/table2", "tiny-resnet18", "fedcp")["lam"] == 1
    assert values("fedcp/table2", "tiny-resnet18", "fedavg")["lr"] == 0.1
    assert values("fedios/table1", "office-4", "fedcp")["lam"] == 0.1
    assert values("fedios/table1", "digits5-5", "fedcp")["lam"] == 0.1
    assert values("fedios/table1", "cifar100-5", "fedcp")["lam"] == 5
    assert values("fedios/table1", "digits5-5", "fedios")["lam"] == 0
    assert values("fedios/table1", "office-4", "feddyn")["alpha"] == 0.1
    assert values("fedios/table1", "cifar100-5", "feddyn")["alpha"] == 0.01
    assert values("fedafk/table3", "mnist", "fedfomo")["m"] == 20
    for column, epochs in (("office-4", 5), ("digits5-5", 1), ("cifar100-5", 2)):
        ditto, pfedvem = (values("fedios/table1", column, name) for name in ("ditto", "pfedvem"))
        assert ditto["personal_epochs"] == ditto["local_epochs"] == epochs
        assert (pfedvem["head_epochs"], pfedvem["head_lr"]) == (epochs, pfedvem["lr"])
    fedrep = values("fedpick/table2", "digits5", "fedrep")
    assert (fedrep["personal_epochs"], fedrep["local_epochs"]) == (4, 1)
    assert values("fedpick/table2", "office-caltech10", "lg-fedavg")["warmup"] == 20
    assert values("fedpick/table2", "digits5", "fedper")["model_options"] == ["cut=conv"]
    assert values("fedpick/table2", "digits5", "fedpick")["tau"] == 10
    assert values("fedpick/table4", "domainnet", "full")["tau"] == 1
    assert values("fedios/table3", "20-rate0.6", "pfedvem")["head_epochs"] == 5


def test_rows_may_have_a_protocol_of_their_own():
    fedavg, fedafk = (values("fedafk/table3", "mnist", row) for row in ("fedavg", "fedafk"))
    assert (fedavg["protocol"], fedavg["eval_at"]) == ("after_agg,samples,best", "after_agg")
    assert (fedafk["protocol"], fedafk["eval_at"]) == ("fedafk", "after_local")
    assert values("fedios/table2", "cifar100-5", "fedios")["eval_global"] is True


def test_rows_that_the_paper_did_not_run_are_left_out():
    recipe = load_recipe("fedcp/table4")
    for clients, count in ((100, 12), (200, 11), (500, 11)):
        request = recipe.request(column_of(recipe, f"cifar100-{clients}"), recipe.rows, (0,), {})
        assert len(request.rows) == count
    assert ("fedamp", "cifar100-500", "") not in recipe.numbers


def test_scale_by_hand():
    table2, digits = load_recipe("fedcp/table2"), load_recipe("fedpick/table2")
    mnist = column_of(table2, "mnist")
    assert table2.training_samples(mnist) == 52_500
    assert table2.scaled(mnist, 1) == {}
    assert table2.scaled(mnist, 0.04) == {"rounds": 80, "per_client": 525}  # 2625 training samples per client, 0.2
    assert table2.scaled(mnist, 0.001) == {"rounds": 10, "per_client": 83}
    assert table2.scaled(mnist, 1e-6) == {"rounds": 10, "per_client": 20}  # two batches of 10
    scaled = digits.scaled(column_of(digits, "digits5"), 0.25)
    assert scaled == {"rounds": 75, "per_client": 500}  # 1000 samples
    assert digits.scaled(column_of(digits, "office-caltech10"), 0.25)["lg-fedavg.warmup"] == 5
    tiny = load_recipe("fedcp/table1")
    assert tiny.training_samples(tiny.columns[0]) == 75_000
    fedios = load_recipe("fedios/table1")
    assert fedios.training_samples(column_of(fedios, "office-4")) == 4 * 62
    assert fedios.training_samples(column_of(fedios, "office-12")) == 4 * 62
    assert fedios.scaled(column_of(fedios, "domainnet-12"), 0.25) == {
        "rounds": 50
    }  # two batches are more than its samples
    assert fedios.training_samples(column_of(fedios, "cifar100-5")) == 50_000


OWN = """
title = "own"
method = "fedcp"
numbers = '''
fedavg 50.0±1.5 -
lam=2  60       x
'''
[settings]
dataset = "digits"
lr = 0.05
model = "mlp"
fedcp.cpn_depth = 2
[columns.a]
[columns.b]
lr = 0.1
fedcp.lr = 0.2
"""


def own(tmp_path, text=OWN, paper=""):
    tmp_path.joinpath("table.toml").write_text(text)
    if paper:
        tmp_path.joinpath("paper.toml").write_text(paper)
    return load_recipe(str(tmp_path / "table.toml"))


def test_layers_of_a_recipe(tmp_path):
    paper = """
    seeds = [3, 4]
    [settings]
    rounds = 7
    lr = 0.5
    batch_size = 3
    [datasets.digits]
    rounds = 8
    fedcp.lam = 9
    [models.mlp]
    batch_size = 4
    """
    recipe = own(tmp_path, paper=paper)
    a, b = recipe.columns
    assert recipe.seeds == (3, 4)
    assert {n: recipe.settings(a)[n] for n in ("rounds", "lr", "batch_size")} == {
        "rounds": 8, "lr": 0.05, "batch_size": 4
    }  # fmt: skip
    assert recipe.settings(b)["lr"] == 0.1
    assert recipe.row_values(row_of(recipe, "lam=2"), b) == {"lam": "2", "cpn_depth": 2, "lr": 0.2}
    assert recipe.row_values(row_of(recipe, "fedavg"), b) == {}
    assert recipe.row_values(row_of(recipe, "lam=2"), b, {"lr": "1", "lam": "5"}) == {"cpn_depth": 2}
    assert recipe.numbers == {("fedavg", "a", ""): Expected(50.0, 1.5), ("lam=2", "a", ""): Expected(60.0)}
    assert recipe.not_run == {("lam=2", "b")}
    request = recipe.request(a, recipe.rows, (0,), {"rounds": "2"})
    assert request.values["rounds"] == "2"
    assert {f.name for f in fields(Settings)} - set(request.values) >= {"seed", "data_dir"}


def test_grids_have_one_row_for_each_value(tmp_path):
    text = OWN.partition("numbers")[0] + 'grid.lam = [0.5, 1]\n[settings]\ndataset = "digits"\nmodel = "mlp"\n'
    recipe = own(tmp_path, text)
    assert [row.name for row in recipe.rows] == ["lam=0.5", "lam=1"]
    assert recipe.numbers == {}
    assert [column.name for column in recipe.columns] == ["all"]


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("lr = 0.05", "lrr = 0.05", "no option 'lrr'; did you mean 'lr'"),
        ("fedcp.cpn_depth", "fedcp.cpn_dept", "no option 'cpn_dept'; did you mean 'cpn_depth'"),
        ("fedcp.cpn_depth = 2", "fedcp.cpn_depth = 0", "cpn_depth: must be at least 1"),
        ('dataset = "digits"', 'dataset = "digit"', "no data set 'digit'"),
        ('model = "mlp"', 'model = "ml"', "no model 'ml'"),
        ("lam=2 ", "lamb=2", "no option 'lamb'"),
        ("fedavg 50.0±1.5", "fedagv 50.0±1.5", "row 'fedagv': no method 'fedagv'; did you mean 'fedavg'"),
        ("50.0±1.5 -", "50.0±1.5", "row 'fedavg' has 1 numbers for 2 columns and domains"),
        ("50.0±1.5", "50%", "'50%' is not a number"),
        ('title = "own"', 'title = "own"\nsubject = "full"', "subject: no row 'full'"),
        ('title = "own"', 'titel = "own"', "no option 'titel'; did you mean 'title'"),
        ('title = "own"', 'title = "own"\nprotocol = "fedcpp"', "did you mean 'fedcp'"),
        ('title = "own"', "title = ", "not a TOML file"),
    ],
)
def test_mistakes_in_recipes(tmp_path, before, after, message):
    assert before in OWN
    with pytest.raises(ConfigError, match=message):
        own(tmp_path, OWN.replace(before, after))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fedcp/tabel2", "no recipe 'fedcp/tabel2'; did you mean 'fedcp/table2'"),
        ("fedcp", "there is fedcp/table1, fedcp/table2, "),
        ("nowhere.toml", "no recipe 'nowhere.toml'"),
    ],
)
def test_unknown_recipes(name, message):
    with pytest.raises(ConfigError, match=message):
        load_recipe(name)


@pytest.mark.parametrize(
    ("rows", "columns", "message"),
    [
        ("fedcpp", None, "rows: no row 'fedcpp'; did you mean 'fedcp'"),
        (None, "mnst", "columns: no column 'mnst'; did you mean 'mnist'"),
        ("zzz", None, "there is fedavg, fedprox"),
    ],
)
def test_unknown_rows_and_columns(rows, columns, message):
    with pytest.raises(ConfigError, match=message):
        load_recipe("fedcp/table2").select(rows, columns)
