"""Mutation testing tells mutants that are caught, that do not compile and that change nothing apart."""

import pytest

from tests.emulation.harness import CXX
from tests.mutation import table
from tests.mutation.__main__ import kernels, team_for
from tests.mutation.equivalent import EQUIVALENT
from tests.mutation.rules import mutants_of, sample_of
from tests.mutation.worker import CAUGHT, INVALID, PASSED

SOURCE = """// a < b
#if A < B
for (int i = 0; i < count; ++i) {  // i < count
  sum += x[i];
}
"""
ROW = table.Row(
    "mix/cpu_kernel.cpp",
    136,
    {table.INVALID: 1, table.CAUGHT: 9, table.EQUIVALENT: 2, table.SURVIVED: 0},
    ["a", "b, c"],
)


def test_mutants_change_code_but_no_comments_and_no_preprocessor_lines():
    mutants = mutants_of(SOURCE)
    assert {str(mutant) for mutant in mutants} == {
        "off by one: for (int i = 0; i <= count; ++i) {  // i < count",
        "skip the first: for (int i = 1; i < count; ++i) {  // i < count",
        "shift an index: sum += x[i + 1];",
        "assign instead of add: sum = x[i];",
    }
    for mutant in mutants:
        changed = [(a, b) for a, b in zip(SOURCE.splitlines(), mutant.text.splitlines(), strict=True) if a != b]
        assert [b.strip() for _, b in changed] == [mutant.after]
        assert mutant.text.splitlines()[mutant.line - 1].strip() == mutant.after


def test_a_sample_depends_on_the_seed_only_and_has_every_rule_before_one_twice():
    mutants = mutants_of(SOURCE * 5)
    assert sample_of(mutants, 9, "a") == sample_of(mutants, 9, "a") != sample_of(mutants, 9, "b")
    assert len({mutant.rule for mutant in sample_of(mutants, 4, "a")}) == 4
    assert len(sample_of(mutants, 1000, "a")) == len(mutants) == 20


@pytest.mark.slow
@pytest.mark.skipif(CXX is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("name", ["philox_uniform/cpu_kernel.cpp", "philox_uniform/cuda_kernel.cu"])
def test_verdicts(name):
    kernel = kernels()[name]
    text = kernel.read_text()
    brace = text.index("{\n", text.index("philox_uniform(const")) + 2  # where the body of a function begins
    wrong_seed = text.replace("p.seeds[client]", "(p.seeds[client] + 1)")
    bad_access = (
        text[:brace] + "volatile int last[4] = {}; for (volatile int i = 0; i <= 4; ++i) last[i];" + text[brace:]
    )
    forever = text[:brace] + "for (volatile int i = 1; i != 0;) {}" + text[brace:]
    assert len({text, wrong_seed, bad_access, forever}) == 4
    with team_for(kernel) as team:

        def verdict(text, variant="plain", seconds=600):
            return team[variant].check(kernel, text, variant, seconds)[0]

        assert [verdict(text, variant) for variant in team] == [PASSED] * len(team)
        assert verdict(wrong_seed) == CAUGHT
        assert verdict(bad_access, "asan") == CAUGHT
        assert verdict(forever, seconds=10) == CAUGHT
        assert verdict("not C++") == INVALID


def test_update_replaces_the_rows_of_the_new_results_only(tmp_path):
    report = tmp_path / "mutants.md"
    assert str(table.Row.parse(str(ROW))) == str(ROW) == "| mix/cpu_kernel.cpp | 136 | 12 | 1 | 9 | 2 | 0 | a; b, c |"
    other, gone = (table.Row(name, 1, dict.fromkeys(table.VERDICTS, 1)) for name in ("a/cuda_kernel.cu", "b.cu"))
    table.update(report, [ROW, other, gone], [ROW.kernel, other.kernel, gone.kernel])
    new = table.Row(other.kernel, 8, {**other.verdicts, table.CAUGHT: 5})
    table.update(report, [new], [ROW.kernel, other.kernel])
    assert list(map(str, table.read(report).values())) == [str(new), str(ROW)]
    assert report.read_text().endswith("14 of 15 mutants that are not equivalent are caught, 93.3%.\n")


def test_rows_of_the_table_name_kernels_and_listed_reasons():
    rows = table.read(table.REPORT)
    assert rows.keys() <= kernels().keys()
    for name, row in rows.items():
        assert set(row.reasons) <= set(EQUIVALENT.get(name, {}).values())
