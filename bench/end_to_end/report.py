"""Measured results: a page for a terminal, a table for docs/performance.md and a short one for README.md."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from bench.end_to_end.measure import OURS, PARTS, YARDSTICK

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PERFORMANCE = ROOT / "docs" / "performance.md"
BLOCK = re.compile(r"(<!-- bench-e2e -->\n).*?(<!-- /bench-e2e -->)", re.DOTALL)
DISPATCH_GOAL = 15.0
WORKERS_GOAL = 1.8
SETS = ("avx512", "avx2", "baseline", "reference")
SHORT = (0, 1, 2, 3, 5)  # columns of the README's table
HEADER = (
    "method, data",
    "yardstick, s/round",
    "pfl-fast, s/round",
    "times as fast (20 to 80 %)",
    "goal",
    "accuracy, both",
    "samples/s, both",
    "GFLOP/s, both",
    "peak MiB, both",
)


def verdict(reached: float, goal: float) -> str:
    return f"{'reached' if reached >= goal else 'MISSED'} (>= {goal:g})"


def goals(result: dict) -> Iterator[tuple[str, float, float]]:
    """Yields name, measured ratio and goal."""
    for name, case in result["cases"].items():
        yield name, case["ratio"][0], case["goal"]
    if "exchange" in result:
        yield "aggregation and broadcast", result["exchange"]["ratio"][0], result["exchange"]["goal"]
    for name, counts in result.get("dispatches", {}).items():
        yield f"{name}: operators of a batched step", counts[YARDSTICK] / counts["batched"], DISPATCH_GOAL


def page(mode: str, stored: dict) -> str:
    """Returns all results as text for a terminal."""
    machine, result = stored["machine"], stored[mode]
    peaks = result["peaks"]
    lines = [
        f"{processor(machine)}, {machine['cores']} cores, torch {machine['torch']}, commit {result['commit']}, {mode}",
        f"matrix product {peaks['gemm_gflops']:.0f} GFLOP/s, read {peaks['read_gbs']:.1f} GB/s, copy "
        f"{peaks['copy_gbs']:.1f} GB/s (of the bytes copied)",
    ]
    lines += [f"BUSY: {result['warning']}"] if result.get("warning") else []
    for name, case in result["cases"].items():
        lines += ["", *case_lines(name, case, peaks)]
    lines += ["", *worker_lines(result), *exchange_lines(result), *dispatch_lines(result), "", "goals"]
    lines += [f"  {name:45} {reached:7.2f}  {verdict(reached, goal)}" for name, reached, goal in goals(result)]
    return "\n".join(lines)


def case_lines(name: str, case: dict, peaks: dict) -> list[str]:
    ratio = case["ratio"]
    lines = [
        f"{name} ({case['data']}): {case['clients']} clients, {case['samples']:,} training and {case['tests']:,} test "
        f"samples, {case['parameters']:,} parameters averaged; {ratio[0]:.2f} ({ratio[1]:.2f} to {ratio[2]:.2f}) times "
        f"as fast as the yardstick, {verdict(ratio[0], case['goal'])}",
        f"  {'':12}{'s/round':>20}" + "".join(f"{part:>11}" for part in PARTS),
    ]
    for side in (YARDSTICK, OURS):
        median, low, high = case["seconds"][side]
        shown = f"{median:.2f} ({low:.2f}-{high:.2f})"
        parts = "".join(f"{case['parts'][side][part]:>11.3f}" for part in PARTS)
        lines += [f"  {side:12}{shown:>20}{parts}", f"  {'':12}{rates(case, side, peaks)}"]
    return lines


def rates(case: dict, side: str, peaks: dict) -> str:
    """Returns the speed of one side, in absolute numbers and as a fraction of the machine's, and its accuracy."""
    share = 100 * case["gflops"][side] / peaks["gemm_gflops"]
    moved = 8 * case["clients"] * case["parameters"] / 1e9  # each client's parameters, read once and written once
    exchange = case["parts"][side]["aggregate"] + case["parts"][side]["distribute"]
    facts = [
        f"{case['cores'][side]:.1f} cores",
        f"{case['samples_per_second'][side]:.0f} samples/s",
        f"{case['gflops'][side]:.1f} GFLOP/s ({share:.0f} % of the matrix product)",
        f"exchange {moved / exchange:.1f} GB/s",
        f"accuracy {case['accuracy'][side]:.4f} after {case['rounds']} rounds",
        f"AUC {case['auc'][side]:.4f}",
    ]
    return ", ".join([*facts, *([f"peak {case['peak_mib'][side]:.0f} MiB"] if "peak_mib" in case else [])])


def processor(machine: dict) -> str:
    return machine["cpu"] + (f" ({machine['generation']})" if machine.get("generation") else "")


def worker_lines(result: dict) -> list[str]:
    """Returns how much faster rounds with few samples are with two workers than with one."""
    found = {name: values["ratio"] for name, values in result.get("workers", {}).items()}
    return [
        f"Two workers are {ratio[0]:.2f} ({ratio[1]:.2f} to {ratio[2]:.2f}) times as fast as one in rounds of "
        f"{name.partition('-')[0]}, {verdict(ratio[0], WORKERS_GOAL)}."
        for name, ratio in found.items()
    ]


def exchange_lines(result: dict) -> list[str]:
    if "exchange" not in result:
        return []
    exchange = result["exchange"]
    times = {name: 1e3 * values[0] for name, values in exchange["seconds"].items()}
    ratio, rates = exchange["ratio"], exchange["gbs"]
    return [
        f"aggregation and broadcast, 20 clients of {exchange['parameters']:,} parameters: yardstick "
        f"{times[YARDSTICK]:.1f} ms, ours {times[OURS]:.1f} ms, of it {times['load']:.1f} ms clients' own copies; "
        f"{ratio[0]:.1f} ({ratio[1]:.1f} to {ratio[2]:.1f}) times as fast; one read of every client's parameters: "
        f"{rates[YARDSTICK]:.1f} and {rates[OURS]:.1f} GB/s, {rates['read']:.1f} if that is all that is done, in "
        f"{times['read']:.1f} ms: at most {times[YARDSTICK] / times['read']:.1f} times as fast"
    ]


def dispatch_lines(result: dict) -> list[str]:
    lines = ["operators per client and step, each a launch on a GPU"] if result.get("dispatches") else []
    for name, counts in result.get("dispatches", {}).items():
        lines.append(f"  {name}: " + ", ".join(f"{kind} {count:.1f}" for kind, count in counts.items()))
    return lines


def table(stored: dict) -> str:
    """Markdown for docs/performance.md, by instruction set: full results if they exist, else quick ones."""
    blocks = []
    for mode in _modes(stored):
        result = stored[mode]
        heading = (
            f"{_heading(stored, mode)} In the same run a matrix product ran at {result['peaks']['gemm_gflops']:.0f} "
            "GFLOP/s. Both sides' GFLOP/s count the yardstick's arithmetic; the library needs less (Winograd "
            "convolutions, skipped zeros)."
        )
        blocks.append("\n".join([heading, "", *_rows(result, range(len(HEADER))), "", *sentences(result)]).rstrip())
    return "\n\n".join(blocks) + "\n"


def short_table(stored: dict) -> str:
    """Markdown for README.md: time and accuracy with the best instruction set only."""
    mode = _modes(stored)[0]
    return "\n".join([_heading(stored, mode), "", *_rows(stored[mode], SHORT)]) + "\n"


def _modes(stored: dict) -> list[str]:
    """Returns the keys of full results, the best instruction set first; of quick ones, if there are no full ones."""
    modes = [[key for key in stored if key.startswith(f"{size} ")] for size in ("full", "quick")]
    return sorted(modes[0] or modes[1], key=lambda key: SETS.index(key.split()[1]))


def _heading(stored: dict, mode: str) -> str:
    machine, result = stored["machine"], stored[mode]
    size, kernels = mode.upper().replace("AVX512", "AVX-512").split()
    few = "" if size == "FULL" else ", at most 200 samples per client (`--quick`)"
    busy = f" When it began, {result['warning']}." if result.get("warning") else ""
    return (
        f"{processor(machine)}, {machine['cores']} cores, {kernels}, torch {machine['torch']}, commit "
        f"{result['commit']}{few}.{busy}"
    )


def _rows(result: dict, columns: Iterable[int]) -> list[str]:
    rows = [HEADER, ["---"] * len(HEADER), *(cells(name, case) for name, case in result["cases"].items())]
    columns = list(columns)
    return ["| " + " | ".join(row[column] for column in columns) + " |" for row in rows]


def cells(name: str, case: dict) -> list[str]:
    def both(values: dict, form: str) -> str:
        return " / ".join(format(values[side], form) for side in (YARDSTICK, OURS))

    ratio = case["ratio"]
    method, _, data = name.partition("-")
    few = f", at most {case['most']} samples per client" if case.get("most") else ""
    return [
        f"{method}, {data} ({case['data']}{few})",
        f"{case['seconds'][YARDSTICK][0]:.2f}",
        f"{case['seconds'][OURS][0]:.2f}",
        f"{ratio[0]:.2f} ({ratio[1]:.2f} to {ratio[2]:.2f})",
        verdict(ratio[0], case["goal"]),
        both(case["accuracy"], ".3f"),
        both(case["samples_per_second"], ".0f"),
        both(case["gflops"], ".0f"),
        both(case["peak_mib"], ".0f") if "peak_mib" in case else "-",
    ]


def sentences(result: dict) -> list[str]:
    lines = worker_lines(result)
    if "exchange" in result:
        exchange = result["exchange"]
        ratio, bound = exchange["ratio"], exchange["seconds"][YARDSTICK][0] / exchange["seconds"]["read"][0]
        lines.append(
            f"Aggregation and broadcast of 20 clients of {exchange['parameters'] / 1e6:.1f} M parameters: "
            f"{ratio[0]:.1f} times as fast ({ratio[1]:.1f} to {ratio[2]:.1f}), {verdict(ratio[0], exchange['goal'])}; "
            f"reading the uploads once, without any arithmetic, would be {bound:.1f} times as fast."
        )
    for name, counts in result.get("dispatches", {}).items():
        fewer = counts[YARDSTICK] / counts["batched"]
        shown = ", ".join(f"{kind} {count:.1f}" for kind, count in counts.items())
        lines.append(
            f"Operators per client and step of {name.partition('-')[0]}, each a launch on a GPU: {shown}; batched "
            f"{fewer:.0f} times fewer, {verdict(fewer, DISPATCH_GOAL)}."
        )
    return lines


def update_docs(stored: dict) -> None:
    """Writes both tables."""
    for file, block in ((README, short_table(stored)), (PERFORMANCE, table(stored))):
        file.write_text(replace_block(file.read_text(), block))


def replace_block(text: str, block: str) -> str:
    """Replaces the text between the marks."""
    if not BLOCK.search(text):
        raise ValueError("text must have a block from <!-- bench-e2e --> to <!-- /bench-e2e -->; there is none")
    return BLOCK.sub(lambda match: f"{match[1]}{block}{match[2]}", text)
