import pytest

from logel.errors import OptionError, check_gamma


@pytest.mark.parametrize("gamma", [0.0, 0.5, 0.999])
def test_discount_factors_below_one_pass(gamma: float) -> None:
    assert check_gamma(gamma) == gamma


@pytest.mark.parametrize("gamma", [1.0, -0.1, 2.0, float("nan"), float("inf")])
def test_other_discount_factors_are_refused_by_value(gamma: float) -> None:
    with pytest.raises(OptionError, match=rf"gamma must be in \[0, 1\), but is {gamma}"):
        check_gamma(gamma)
