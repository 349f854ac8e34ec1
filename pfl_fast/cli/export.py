"""``pfl-fast export``: writes a client's model to a file that other programs load without pfl-fast."""

from __future__ import annotations

from pathlib import Path

import click

from pfl_fast.cli.trained_run import chosen_client, client_option, open_run, run_argument, trust_option

FORMATS = ("export", "torchscript", "onnx", "state")


@click.command()
@run_argument
@client_option("name or number of the client  [required]")
@click.option("--format", type=click.Choice(FORMATS), default="export", help="see above  [export]")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="file to write  [METHOD-CLIENT.pt2]")
@trust_option
def export(run: Path, client: str | None, format: str, out: Path | None, trust: bool) -> None:
    """Write the model of a client of the run in folder RUN to a file that is loaded without pfl-fast.

    The model takes any number of samples that are not normalised, such as images [b, C, H, W] in [0, 1], and returns
    logits; names of classes are in the file. It is written only if it predicts as the trainer does. The data set is
    not needed.

    \b
    Formats:
      export       program of torch.export (.pt2), for torch.export.load
      torchscript  TorchScript module (.pt), for torch.jit.load, also in C++
      onnx         ONNX model (.onnx); needs pip install 'pfl-fast[onnx]'
      state        tensors alone (.safetensors), for a model of your own

    \b
    Examples:
      pfl-fast export runs/fedcp-digits-1 --client 3
      pfl-fast export runs/fedcp-digits-1 --client "client 3" --format torchscript --out model.pt
      pfl-fast export runs/fedbn-digits5-1 --client svhn --format onnx --out svhn.onnx
    """
    experiment = open_run(run, trust)
    number = chosen_client(experiment, client)

    from pfl_fast.export import FORMATS as KINDS
    from pfl_fast.export import export_client
    from pfl_fast.export.portable import describe_input

    file = export_client(experiment, number, out, format)
    taken = describe_input(experiment.data.dataset)
    shape = ", ".join(map(str, taken["shape"]))
    rounds, planned = experiment.state.rounds_done, experiment.last_round
    click.echo(
        f"{experiment.client_names[number]} of {experiment.method_class.title} after round {rounds} of {planned}\n"
        f"{file}: {KINDS[format].title}, {file.stat().st_size / 1e6:.1f} MB, predictions equal the trainer's\n"
        f"input: {taken['kind']} [b, {shape}] {taken['dtype']}"
        f"{' in [0, 1]' if taken['kind'] == 'images' else ''}; output: logits of {experiment.data.num_classes} classes"
    )
    if format != "state":
        click.echo(f"try next\n  pfl-fast predict {file} IMAGE...")
