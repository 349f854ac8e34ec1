import pytest

from tests.methods.compare import COMMON, assert_equals_naive


@pytest.mark.parametrize("case", COMMON)
def test_two_rounds_equal_the_naive_implementation(case):
    assert_equals_naive("fedavg", COMMON[case])
