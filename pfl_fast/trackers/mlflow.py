"""MLflow; MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME choose server and experiment."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from pfl_fast.trackers.base import Tracker

AT_ONCE = 100  # parameters that MLflow accepts in one call


class MLflow(Tracker):
    """Sends a run to MLflow, under the name of its folder."""

    name = "mlflow"

    def begin(self, settings: Mapping[str, Any], round: int) -> None:
        """Opens a new run, or continues that of the folder."""
        self.mlflow: Any = import_module("mlflow")
        identifier = self.identifier()
        name = None if identifier else self.folder.name
        self.run: Any = self.mlflow.start_run(run_id=identifier, run_name=name)
        self.keep_identifier(self.run.info.run_id)
        if round == 1:
            names = list(settings)
            for first in range(0, len(names), AT_ONCE):
                self.mlflow.log_params({name: settings[name] for name in names[first : first + AT_ONCE]})

    def send(self, values: Mapping[str, float], round: int) -> None:
        """Sends the values as one step."""
        self.mlflow.log_metrics(dict(values), step=round)

    def end(self, summary: Mapping[str, float]) -> None:
        """Sends the summary and ends the run."""
        self.mlflow.log_metrics(dict(summary))
        self.mlflow.end_run()
