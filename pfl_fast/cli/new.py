"""``pfl-fast new``: writes files to start from."""

from __future__ import annotations

import keyword
import re
from pathlib import Path

import click

from pfl_fast.cli.command_group import CommandGroup
from pfl_fast.errors import ConfigError

METHOD = '''\
"""{title}: a shared extractor and a personal head, which may not move far from where it was.

    L_i = CE(head_i(extractor(x))) + mu / 2 * |head_i|^2

    pfl-fast train {file} --dataset digits --rounds 5 --set mu=0.01
"""

from __future__ import annotations

from dataclasses import dataclass

from pfl_fast.methods import Method
from pfl_fast.methods.base import Phase, cross_entropy, personal, shared
from pfl_fast.options import option


@dataclass(frozen=True)
class Options:
    """Options of the method: each is checked, shown by --help, and set by --set NAME=VALUE."""

    mu: float = option(0.01, "weight of the penalty on the head", minimum=0)


class {title}(Method):
    """Shared extractor, personal head with a penalty."""

    Options = Options

    def parts(self, backbone):
        # The model of a client. shared: averaged by the server in every round; personal: never leaves the client.
        return {{"extractor": shared(backbone.extractor, "extractor"), "head": personal(backbone.head)}}

    def phases(self, round):
        # Local training of a round: the parts that are trained, the loss, the number of epochs.
        return [Phase(("extractor", "head"), self.loss, self.context.local_epochs)]

    def loss(self, client, batch):
        # Written for one client; runs for a stack of clients too. No .item(), no branch on a tensor, no torch.rand:
        # noise comes from batch.seed. Scalars in the dictionary are recorded in clients.csv.
        classification = cross_entropy(self.predict(client, batch), batch.y)
        penalty = sum(parameter.square().sum() for parameter in client.head.parameters()) / 2
        return classification + self.options.mu * penalty, {{"penalty": penalty.detach()}}

    def predict(self, client, batch):
        # Logits [b, C] of the client's model.
        return client.head(client.extractor(batch.x))
'''

TEST = '''\
"""{title} trains, and every executor computes the same. Run: python -m pytest {test}"""

import pytest
from {stem} import {title}

from pfl_fast import Experiment


def train(**settings):
    data = {{"dataset": "digits", "partition": "pathological", "clients": 4, "model": "mlp"}}
    with_rounds = {{"rounds": 2, "lr": 0.1, "log": lambda text: None}}
    experiment = Experiment({title}, **data, **with_rounds, **settings)
    records = list(experiment.rounds())
    experiment.close()
    return records


def test_the_loss_falls():
    first, last = train()
    assert last["train_loss"] < first["train_loss"]


@pytest.mark.parametrize("executor", ["threads", "batched"])
def test_executors_agree(executor):
    expected, found = train(executor="sequential")[-1], train(executor=executor)[-1]
    assert found["train_loss"] == pytest.approx(expected["train_loss"], rel=1e-3)


def test_the_option_has_an_effect():
    assert train(mu=0.0)[-1]["train_loss"] < train(mu=1.0)[-1]["train_loss"]
'''


@click.group(cls=CommandGroup)
def new() -> None:
    """Write a file to start from: a method of your own.

    \b
    Examples:
      pfl-fast new method MyMethod
    """


@new.command()
@click.argument("name")
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), default=Path(), help="folder for the files  [.]"
)
def method(name: str, out: Path) -> None:
    """Write a commented method NAME and its test, which both run as they are.

    \b
    Examples:
      pfl-fast new method MyMethod
      pfl-fast train my_method.py:MyMethod --dataset digits --rounds 5
      python -m pytest test_my_method.py
    """
    words = re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)
    title, stem = "".join(word[:1].upper() + word[1:] for word in words), "_".join(words).lower()
    if not re.fullmatch(r"[A-Za-z][\w-]*", name, re.ASCII) or not stem.isidentifier() or keyword.iskeyword(stem):
        raise ConfigError(f"name: {name!r} cannot be the name of a class; use letters and digits, such as MyMethod")
    files = {out / f"{stem}.py": METHOD, out / f"test_{stem}.py": TEST}
    if there := [str(file) for file in files if file.exists()]:
        raise ConfigError(f"{' and '.join(there)} exist already; choose another name or --out")
    out.mkdir(parents=True, exist_ok=True)
    file = f"{stem}.py:{title}"
    for path, text in files.items():
        path.write_text(text.format(title=title, stem=stem, file=file, test=f"test_{stem}.py"), encoding="utf-8")
    own, test = files
    click.echo(f"{own}: the method\n{test}: its test")
    click.echo(f"try next\n  pfl-fast train {own}:{title} --dataset digits --rounds 5\n  python -m pytest {test}")
