"""Mutants of a kernel: its source with one small change each."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from itertools import zip_longest

RULES = [
    ("remove a barrier", r"__syncthreads\(\);", ";"),
    ("drop an atomic", r"atomicAdd\((reinterpret_cast<[^>]*>\([^;]*?\)),\s*([^;]*)\);", r"*(\1) += \2;"),
    ("wrong thread", r"\+ threadIdx\.x", "+ threadIdx.x + 1"),
    ("wrong lane", r"% kWarp", "% (kWarp / 2)"),
    ("half the warp", r"kAllLanes, ", "0xffffu, "),
    ("off by one", r" < ", " <= "),
    ("off by one, the other way", r" <= ", " < "),
    ("late guard", r" >= ", " > "),
    ("reverse a comparison", r" > ", " < "),
    ("forget a guard", r"== 0\b", ">= 0"),
    ("skip the first", r"\b(int|int64_t) (\w+) = 0;", r"\1 \2 = 1;"),
    ("drop the tail", r" \+ (\w+) - 1\) / \1", r") / \1"),
    ("shift an index", r"([\[ ])((?!k[A-Z])[a-z]\w*)\]", r"\1\2 + 1]"),
    ("wrong element", r"\[0\]", "[1]"),
    ("wrong element", r"\[[1-9]\]", "[0]"),
    ("wrong stride", r"\* (numel|shape\.clients|kTile|pairs) \+", r"+ \1 *"),
    ("wrong path", r"\btrue\b", "false"),
    ("wrong path", r"\bfalse\b", "true"),
    (
        "swap a choice",
        r" \? ([^?:;]+) : ((?:[^?:;,()<>\[\]]|\[[^\[\]]*\])+(?:<[^<>]*>)?(?:\([^()]*\))?)([;,)])",
        r" ? \2 : \1\3",
    ),
    ("assign instead of add", r" \+= (?!kThreads|kWarp|gridDim|kMixtures)", " = "),
    ("difference for sum", r" \+ ", " - "),
    ("sum for difference", r" - ", " + "),
    ("sum for product", r" \* ", " + "),
    ("product for quotient", r" / ", " * "),
    ("quotient for remainder", r" % (?!kWarp)", " / "),
    ("lose a sign", r"= -(?=\w)", "= "),
]


@dataclass(frozen=True)
class Mutant:
    """One change: the rule, the number and text of the changed line, and the whole changed source."""

    rule: str
    line: int
    after: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.after}"


def mutants_of(text: str) -> list[Mutant]:
    """Returns one mutant for each match of each rule in the code, without comments and preprocessor lines."""
    found = []
    for rule, pattern, replacement in RULES:
        for match in re.finditer(pattern, text):
            start = text.rfind("\n", 0, match.start()) + 1
            if "//" in text[start : match.start()] or text.startswith("#", start):
                continue
            changed = text[: match.start()] + match.expand(replacement) + text[match.end() :]
            line = changed[start : changed.find("\n", match.start())].strip()
            found.append(Mutant(rule, text.count("\n", 0, start) + 1, line, changed))
    return found


def sample_of(mutants: list[Mutant], size: int, seed: str) -> list[Mutant]:
    """Returns ``size`` mutants, or all if there are fewer. One is drawn from each rule in turn, so rare rules count."""
    generator = random.Random(seed)
    by_rule: dict[str, list[Mutant]] = {}
    for mutant in mutants:
        by_rule.setdefault(mutant.rule, []).append(mutant)
    groups = [generator.sample(group, len(group)) for group in by_rule.values()]
    generator.shuffle(groups)
    in_turn = [mutant for turn in zip_longest(*groups) for mutant in turn if mutant is not None]
    return sorted(in_turn[:size], key=lambda mutant: mutant.line)
