"""Ways to run a recorded local step, in turn and on one thread: ``python -m bench.runners``.

Milliseconds per step of the papers' CNN on ten MNIST-sized images, in CPU time, so that other processes disturb less:

    eager        the engine's step in Python
    torchscript  the recorded program, which the engine uses
    flat loop    the operators of the same program called one after the other by C++, without an interpreter
    inductor     the program compiled by AOTInductor (--inductor), whose fused loops round differently
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from time import thread_time
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.cpp_extension import load_inline

from bench.machine import heading
from pfl_fast import Experiment
from pfl_fast.data.synthetic import synthetic
from pfl_fast.engine.local.program import StepProgram
from pfl_fast.engine.local.steps import Steps

METHODS, SAMPLES, TURNS, STEPS = ("fedavg", "fedcp"), 160, 15, 16
FLAT_LOOP = """
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/extension.h>
using namespace torch::jit;
using c10::IValue;
using Tensors = std::vector<at::Tensor>;

struct Call {
  Operation run;
  std::vector<int> inputs, outputs;
  std::vector<bool> last;  // use of an input
};

struct FlatLoop {
  std::vector<Call> calls;
  std::vector<IValue> values;
  int result;

  explicit FlatLoop(std::shared_ptr<Graph> graph) : graph(graph) {
    std::unordered_map<Value*, int> places;
    const auto place = [&](Value* value) { return places.emplace(value, places.size()).first->second; };
    for (Value* input : graph->inputs()) place(input);
    for (Node* node : graph->nodes()) {
      for (Value* output : node->outputs()) place(output);
      if (node->kind() == c10::prim::Constant) {
        values.resize(places.size());
        values[place(node->output())] = toIValue(node->output()).value();
        continue;
      }
      Call call{operation(node), {}, {}, {}};
      for (Value* input : node->inputs()) {
        call.inputs.push_back(place(input));
        call.last.push_back(input->node()->kind() != c10::prim::Constant && input->uses().size() == 1);
      }
      for (Value* output : node->outputs()) call.outputs.push_back(place(output));
      calls.push_back(std::move(call));
    }
    result = place(graph->outputs()[0]);
    values.resize(places.size());
  }

  Operation operation(Node* node) {
    const size_t inputs = node->inputs().size();
    if (node->kind() == c10::prim::ListConstruct) {
      return [=](Stack& stack) {
        const auto items = torch::jit::last(stack, inputs);
        IValue list;
        if (inputs && items[0].isTensor()) {
          c10::List<at::Tensor> tensors;
          for (const IValue& item : items) tensors.push_back(item.toTensor());
          list = std::move(tensors);
        } else if (inputs && items[0].isDouble()) {
          list = c10::fmap(items, [](const IValue& item) { return item.toDouble(); });
        } else if (inputs && items[0].isBool()) {
          list = c10::fmap(items, [](const IValue& item) { return item.toBool(); });
        } else if (inputs && !items[0].isInt()) {
          c10::List<std::optional<at::Tensor>> tensors;
          for (const IValue& item : items) tensors.push_back(item.toOptional<at::Tensor>());
          list = std::move(tensors);
        } else {
          list = c10::fmap(items, [](const IValue& item) { return item.toInt(); });
        }
        torch::jit::drop(stack, inputs);
        stack.push_back(std::move(list));
      };
    }
    if (node->kind() == c10::prim::TupleUnpack)
      return [](Stack& stack) {
        const auto tuple = torch::jit::pop(stack).toTuple();
        for (const IValue& item : tuple->elements()) stack.push_back(item);
      };
    return node->getOperation();
  }

  void run(Tensors t, Tensors start, Tensors c, Tensors s, std::vector<double> f, at::Tensor x, at::Tensor y,
           at::Tensor seed, Tensors k) {
    pybind11::gil_scoped_release without_lock;
    c10::InferenceMode guard(false);
    at::AutoDispatchBelowADInplaceOrView below;
    Stack stack;
    for (int64_t step = 0; step < x.size(0); ++step) {
      Tensors now;
      for (const at::Tensor& value : k) now.push_back(value[step]);
      values[0] = t, values[1] = step ? t : start, values[2] = c, values[3] = s, values[4] = f;
      values[5] = x[step], values[6] = y[step], values[7] = seed[step], values[8] = now;
      for (Call& call : calls) {
        for (size_t i = 0; i < call.inputs.size(); ++i) {
          IValue& value = values[call.inputs[i]];
          if (call.last[i]) stack.push_back(std::move(value));
          else stack.push_back(value);
        }
        call.run(stack);
        for (size_t i = call.outputs.size(); i-- > 0;) {
          values[call.outputs[i]] = std::move(stack.back());
          stack.pop_back();
        }
      }
    }
  }

  std::shared_ptr<Graph> graph;
};

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  pybind11::class_<FlatLoop>(m, "FlatLoop").def(pybind11::init<std::shared_ptr<Graph>>()).def("run", &FlatLoop::run);
}
"""


def recorded(method: str) -> tuple[StepProgram, list[Any], float]:
    """Returns the program of a method with arguments for many steps, and the milliseconds of an eager step."""
    data = synthetic(2 * SAMPLES, (1, 28, 28), 10)
    values: dict[str, Any] = {"clients": 2, "model": "cnn", "executor": "sequential", "partition": "iid"}
    calls: list[tuple[StepProgram, list[Any]]] = []
    seconds: list[float] = []
    program_run, eager_run = StepProgram.run, Steps.run

    def keep(program: StepProgram, *arguments: Any, **named: Any) -> Any:
        calls.append((program, list(arguments)))
        return program_run(program, *arguments, **named)

    def timed(steps: Steps, *arguments: Any) -> Any:
        begin = thread_time()
        found = eager_run(steps, *arguments)
        seconds.append(thread_time() - begin)
        return found

    StepProgram.run, Steps.run = keep, timed  # type: ignore[method-assign, assignment]
    try:
        for capture in ("auto", "off"):
            seconds.clear()
            given = {"dataset": data, "rounds": 3, "eval_every": 3, "capture": capture, "log": lambda _: None}
            experiment = Experiment(method, **given, **values)
            experiment.run()
            experiment.close()
    finally:
        StepProgram.run, Steps.run = program_run, eager_run  # type: ignore[method-assign]
    program, arguments = max(calls, key=lambda call: len(call[1][3]))
    tensors, _, scratch, x, y, seeds, cached = arguments[:7]
    copies = [t.clone() for t in tensors]
    several = [value[torch.arange(STEPS) % len(value)].contiguous() for value in (x, y, seeds, *cached)]
    return program, [copies, copies, scratch, *several[:3], several[3:]], 1e3 * median(seconds)


def per_step(run: Callable[[], object]) -> float:
    """Returns milliseconds of CPU time per step of a call that takes many steps."""
    begin = thread_time()
    run()
    return 1e3 * (thread_time() - begin) / STEPS


class OneStep(nn.Module):
    """A program's step as a function that returns what it computes, for AOTInductor."""

    def __init__(self, program: StepProgram) -> None:
        super().__init__()
        lines = program.source.replace(": List[Tensor]", "").replace(": List[float]", "").replace(": Tensor", "")
        namespace: dict[str, Any] = {"torch": torch}
        exec(lines.replace(" -> List[Tensor]", ""), namespace)
        self.step, self.numbers = namespace["step"], program.numbers

    def forward(
        self, t: list[Tensor], c: list[Tensor], s: list[Tensor], x: Tensor, y: Tensor, seed: Tensor, k: list[Tensor]
    ) -> list[Tensor]:
        """Runs the step."""
        found: list[Tensor] = self.step(t, t, c, s, self.numbers, x, y, seed, k)
        return found


def inductor(program: StepProgram, arguments: Sequence[Any], folder: str) -> Callable[[], object]:
    """Returns a call that takes all steps with the program compiled by AOTInductor."""
    tensors, _, scratch, x, y, seeds, cached = arguments
    lists = (list(tensors), list(program.constants), list(scratch))
    first = (*lists, x[0], y[0], seeds[0], [value[0] for value in cached])
    with torch.no_grad():
        exported = torch.export.export(OneStep(program), first)
        path = torch._inductor.aoti_compile_and_package(exported, package_path=str(Path(folder) / "step.pt2"))
        compiled = torch._inductor.aoti_load_package(path)
    return lambda: [compiled(*lists, x[n], y[n], seeds[n], [value[n] for value in cached]) for n in range(STEPS)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inductor", action="store_true", help="also compile with AOTInductor, which takes minutes")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    flat_loop = load_inline("pfl_flat_loop", FLAT_LOOP, extra_cflags=["-O2"])
    print(heading())
    for method in METHODS:
        program, arguments, eager = recorded(method)
        tensors, start, scratch, x, y, seeds, cached = arguments
        loop = flat_loop.FlatLoop(torch.jit.CompilationUnit(program.source).step.graph)
        lists = (tensors, start, program.constants, scratch)
        runs: dict[str, Callable[[], object]] = {
            "torchscript": lambda: program.run(*arguments, stop_at_nan=False),  # noqa: B023
            "flat loop": lambda: loop.run(*lists, program.numbers, x, y, seeds, cached),  # noqa: B023
        }
        with tempfile.TemporaryDirectory() as folder:
            if chosen.inductor:
                runs["inductor"] = inductor(program, arguments, folder)
            times = {name: median(per_step(run) for _ in range(TURNS)) for name, run in runs.items()}
        shown = "".join(f", {name} {time:.3f} ms ({eager / time:.2f} x)" for name, time in times.items())
        print(f"{method}: {len(program.source.splitlines()) - 2} lines, eager {eager:.3f} ms{shown}", flush=True)


if __name__ == "__main__":
    main()
