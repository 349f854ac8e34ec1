from dataclasses import dataclass

import pytest

from pfl_fast.assembly import find_method, resolve
from pfl_fast.errors import ConfigError
from pfl_fast.experiment import Experiment
from pfl_fast.methods import METHODS
from pfl_fast.options import convert, describe, option
from tests.engine import small_experiments as small


@dataclass(frozen=True)
class Example:
    count: int = option(1, "how many", minimum=1, maximum=9)
    rate: float = option(0.5, "how much", minimum=0)
    flag: bool = option(False, "whether")
    kind: str = option("soft", "which", ["soft", "hard"])
    size: int | None = option(None, "how large", minimum=1)
    widths: tuple[float, ...] = option((1.0, 2.0), "how wide", minimum=0)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"count": "3"}, 3),
        ({"count": 3.0}, 3),
        ({"count": "9"}, 9),
        ({"rate": "1e-3"}, 1e-3),
        ({"rate": 2}, 2.0),
        ({"flag": "yes"}, True),
        ({"flag": "False"}, False),
        ({"flag": 1}, True),
        ({"kind": "hard"}, "hard"),
        ({"size": "none"}, None),
        ({"size": None}, None),
        ({"size": "7"}, 7),
        ({"widths": "1, 2.5,3"}, (1.0, 2.5, 3.0)),
        ({"widths": [4]}, (4.0,)),
        ({"widths": ""}, ()),
    ],
)
def test_values_are_converted_to_the_type_of_the_field(given, expected):
    errors = []
    got = convert(Example, given, errors)
    (value,) = got.values()
    assert (value, type(value), errors) == (expected, type(expected), [])


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"count": "many"}, "count: must be an integer, got 'many'"),
        ({"count": 2.5}, "count: must be an integer, got 2.5"),
        ({"count": True}, "count: must be an integer, got True"),
        ({"count": None}, "count: must be an integer, got None"),
        ({"count": 0}, "count: must be at least 1, got 0"),
        ({"count": 10}, "count: must be at most 9, got 10"),
        ({"rate": "fast"}, "rate: must be a number, got 'fast'"),
        ({"rate": True}, "rate: must be a number, got True"),
        ({"rate": "nan"}, "rate: must be a number, not NaN, got 'nan'"),
        ({"rate": "inf"}, "rate: must be finite, got 'inf'"),
        ({"rate": 10**400}, f"rate: must be a number, got {10**400}"),
        ({"rate": -0.1}, "rate: must be at least 0, got -0.1"),
        ({"flag": "maybe"}, "flag: must be true or false, got 'maybe'"),
        ({"flag": 2}, "flag: must be true or false, got 2"),
        ({"kind": "sofft"}, "kind: must be one of soft, hard; did you mean 'soft'?, got 'sofft'"),
        ({"kind": 1}, "kind: must be text, got 1"),
        ({"size": 0}, "size: must be at least 1, got 0"),
        ({"widths": 3}, "widths: must be a list, got 3"),
        ({"widths": "1,x"}, "widths: must be a number, got '1,x'"),
        ({"widths": [1, -2]}, "widths: must be at least 0, got [1, -2]"),
        ({"cuont": 1}, "no option 'cuont'; did you mean 'count'?"),
        ({"zzz": 1}, "no option 'zzz'; known options: count, rate, flag, kind, size, widths"),
    ],
)
def test_invalid_values_are_reported(given, error):
    errors = []
    assert convert(Example, given, errors) == {}
    assert errors == [error]


def test_valid_values_remain_next_to_errors():
    errors = []
    assert convert(Example, {"count": 0, "rate": 1, "x": 2}, errors) == {"rate": 1.0}
    assert len(errors) == 2


def test_descriptions():
    rows = {row.name: row for row in describe(Example)}
    assert list(rows) == ["count", "rate", "flag", "kind", "size", "widths"]
    assert (rows["kind"].type, rows["kind"].default, rows["kind"].choices) == ("str", "soft", ("soft", "hard"))
    assert (rows["size"].type, rows["widths"].type) == ("int | None", "tuple[float, ...]")


def test_all_errors_are_reported_at_once():
    with pytest.raises(ConfigError) as caught:
        resolve(METHODS["fedcp"], {"lam": -1, "rounds": 0, "cpn_nrom": "ln", "lr": "x"}, preset="papper")
    lines = str(caught.value).splitlines()
    assert len(lines) == 6
    assert lines[0] == "these settings cannot be used:"
    for expected in ("preset: FedCP has paper, official", "did you mean 'cpn_norm'", "lam: ", "rounds: ", "lr: "):
        assert any(expected in line for line in lines), expected


def test_later_sources_of_settings_override_earlier_ones():
    """In order: defaults, the paper's values for the model, the preset, the user's values."""
    method = METHODS["fedcp"]
    assert resolve(method, {}, "resnet18").settings.lr == 0.1
    assert resolve(method, {}, "resnet18").options.lam == 1
    assert resolve(method, {}, "cnn").options.lam == 5
    assert resolve(method, {"lam": "0.3"}, "resnet18").options.lam == 0.3
    assert resolve(method, {}, preset="official").settings.shuffle is False
    assert resolve(method, {"shuffle": True}, preset="official").settings.shuffle is True


def test_unknown_methods_are_refused_with_a_suggestion():
    with pytest.raises(ConfigError, match=r"no method 'fedcpp'; did you mean 'fedcp'\?"):
        find_method("fedcpp")
    with pytest.raises(ConfigError, match=f"no method 'zzz'; there is {', '.join(METHODS)}"):
        find_method("zzz")


def test_options_of_another_method_are_refused():
    with pytest.raises(ConfigError, match="no option 'lam'"):
        small.experiment("fedavg", lam=1)


@pytest.mark.parametrize("device", ["gpu", "cpu,", "cuda:99", ""])
def test_unavailable_devices_are_refused(device):
    running = small.experiment("fedavg", device=device)
    with pytest.raises(ConfigError, match="device: "):
        running.run()


def test_bandwidths_must_be_given_and_positive():
    for bandwidths in ([], [0], [10, -1]):
        with pytest.raises(ConfigError, match="bandwidths must be one or more positive"):
            small.experiment("fedcp", bandwidths=bandwidths)


def test_client_numbers_out_of_range_are_refused():
    with small.trained("fedavg", rounds=1) as running:
        assert isinstance(running, Experiment)
        for number in (-1, len(small.RAGGED)):
            with pytest.raises(ValueError, match="client must be from 0 to 4"):
                running.client(number)
