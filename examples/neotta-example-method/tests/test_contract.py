"""The method keeps the contract of neotta."""

import pytest

from neotta.testing import Check, contract


@pytest.mark.parametrize("check", contract("prior"), ids=str)
def test_contract(check: Check) -> None:
    """Run one check."""
    check()
