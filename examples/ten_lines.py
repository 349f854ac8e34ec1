"""Trains FedCP on handwritten digits, prints every round and uses one client's model. Offline, a few seconds.

python examples/ten_lines.py
"""

from pfl_fast import Experiment

experiment = Experiment("fedcp", dataset="digits", clients=10, beta=0.1, rounds=5, lam=1.0)
for record in experiment.rounds():
    print(f"round {record['round']}: accuracy {record['test_accuracy_after_agg']:.3f}, loss {record['train_loss']:.3f}")

model = experiment.client(3)  # a torch module that predicts as this client does
x, y = next(iter(experiment.data.evaluation("test", 3)))
print(f"client 3: {(model(x).argmax(dim=1) == y).float().mean():.3f} on its own {len(y)} test samples")
print(f"best of all rounds: {experiment.summary()['test_accuracy_after_agg']['best']:.3f}")
