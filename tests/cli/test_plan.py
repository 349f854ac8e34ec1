import json

from tests.cli.conftest import SMALL


def test_plan_is_labelled_an_estimate_and_states_its_model(cli):
    page = cli("plan", "fedcp", *SMALL, "--gpu", "h100").output
    assert "Estimate for one H100 (80 GB); nothing was run on a GPU." in page
    assert "10 us per launch, its bytes at 3,350 GB/s" in page
    assert "FLOPs at 66.9 TFLOP/s" in page


def test_plan_as_json_follows_settings(cli):
    def found(*arguments):
        return json.loads(cli("plan", "fedavg", *SMALL, "--json", *arguments).output)

    one, two = found(), found("--local-epochs", "2")
    assert one["estimate"] is True
    assert two["phases"][0]["steps"] == 2 * one["phases"][0]["steps"]
    assert (one["stack"], found("--stack", "2")["stack"]) == (3, 2)


def test_unknown_gpus_are_refused(cli):
    assert "a100" in cli("plan", "fedavg", "--gpu", "tpu", exit_code=2).output
