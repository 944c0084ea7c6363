"""Every architecture against the numbers of transformers.

The golden numbers are made by golden/make_trunk_goldens.py; test_oracle_live.py
compares with other seeds and shapes.
"""

import pytest

from tests import systems
from tests import trunk_parity


@pytest.mark.parametrize('name', systems.SYSTEMS)
def test_logits_gradients_and_steps_equal_transformers(strict_promotion, name):
  trunk_parity.assert_equal(systems.make(name), trunk_parity.load(name))
