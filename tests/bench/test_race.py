"""The summary of comparisons shows goals and lost comparisons of every instruction set."""

from bench.operators import BLOCK, PERFORMANCE
from bench.race import Race, Row, summary


def race(kernels, reference, other, goals):
    return Race(
        "op", kernels, [Row("native", [1.0]), Row("reference", [reference]), Row("other", [other])], None, goals
    )


def test_goals_and_lost_comparisons_are_rows():
    races = [race("avx2", 3.0, 0.5, {"reference": 2.0}), race("avx512", 1.5, 2.0, {"reference": 2.0})]
    assert summary(races).splitlines() == [
        "| benchmark | compared with | avx2 | avx512 | goal |",
        "| --- | --- | --- | --- | --- |",
        "| op | reference | 3.00 | 1.50 | 2, MISSED |",
        "| op | other | 0.50 | 2.00 | - |",
    ]


def test_comparisons_without_a_goal_are_left_out_unless_lost():
    assert len(summary([race("avx2", 1.0, 1.2, {})]).splitlines()) == 2


def test_page_has_a_place_for_the_table():
    assert len(BLOCK.findall(PERFORMANCE.read_text())) == 1
