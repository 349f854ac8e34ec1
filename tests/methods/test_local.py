import pytest

from tests.methods.compare import COMMON, assert_equals_naive
from tests.methods.naive import Local


@pytest.mark.parametrize("case", COMMON)
def test_two_rounds_equal_the_naive_implementation(case):
    assert_equals_naive("local", COMMON[case], Local)
