import pytest

from pfl_fast.cli.pfllib_flags import COMBINED, IGNORED, METHOD_OPTIONS, SETTINGS, UNSUPPORTED, translate
from pfl_fast.cli.setting_options import SETTINGS as OWN_SETTINGS


def test_flags_name_existing_settings():
    assert {name for _, name in SETTINGS.values()} <= set(OWN_SETTINGS)


def test_every_flag_is_in_one_table():
    tables = [SETTINGS, COMBINED, METHOD_OPTIONS, IGNORED, UNSUPPORTED]
    flags = [flag for table in tables for flag in table]
    assert len(flags) == len(set(flags))


@pytest.mark.parametrize(
    ("flags", "values"),
    [
        ({"data": "mnist", "nc": "7", "lbs": "16"}, {"dataset": "mnist", "clients": "7", "batch_size": "16"}),
        ({"lam": "3"}, {"lam": "3"}),
        ({"ld": "True"}, {"lr_decay": "0.99"}),
        ({"ld": "True", "ldg": "0.9"}, {"lr_decay": "0.9"}),
        ({"ld": "False"}, {}),
        ({"dev": "cpu", "did": "1"}, {"device": "cpu"}),
        ({"dev": "cuda"}, {"device": "cuda"}),
        ({"did": "0"}, {}),
        ({"did": "1"}, {"device": "cuda:1"}),
        ({"dev": "cuda", "did": "0,2"}, {"device": "cuda:0,cuda:2"}),
        ({"t": "1", "ab": "False", "nnc": "0", "tsr": "0.0"}, {}),
    ],
)
def test_flags_become_settings_and_options(flags, values):
    result = translate(flags, "FedCP", ["lam"])
    assert (result.values, result.notes, result.errors) == (values, [], [])


@pytest.mark.parametrize("flag", ["go", "ncl", "nb", "ldg", "sfn"])
def test_ignored_flags_give_a_note(flag):
    result = translate({flag: "1"}, "FedCP", ["lam"])
    assert not result.values
    assert not result.errors
    assert result.notes[0].startswith(f"-{flag} is ignored")


@pytest.mark.parametrize(
    ("flags", "message"),
    [({"t": "3"}, "--seed"), ({"ab": "True"}, "--rounds"), ({"mu": "1"}, "FedCP has no option 'mu'")],
)
def test_unsupported_flags_are_errors(flags, message):
    (error,) = translate(flags, "FedCP", ["lam"]).errors
    assert message in error


def test_options_that_pfllib_counts_or_names_differently():
    assert translate({"p": "2", "s": "80"}, "FedALA", ["layer_idx", "rand_percent"]).values == {
        "layer_idx": "1",
        "rand_percent": "80",
    }
    assert translate({"p": "3"}, "FedALA", ["layer_idx"]).values == {"layer_idx": "2"}
    assert translate({"mu": "0.1"}, "Ditto", ["lam", "personal_epochs"]).values == {"lam": "0.1"}
    assert translate({"mu": "0.1"}, "FedProx", ["mu"]).values == {"mu": "0.1"}
    assert translate({"slr": "0.5"}, "SCAFFOLD", ["server_lr"]).values == {"server_lr": "0.5"}
