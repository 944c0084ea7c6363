"""What chips cost, by lists of prices, each with its day and its source."""

import importlib.resources
import json


def of(accelerator, days):
  """{dollars, price} of so many days; nothing where no price is known.

  Args:
    accelerator: accelerators.Accelerator.
    days: that it is used; None if that is not known.
  """
  file = importlib.resources.files('t5x_lite') / 'prices.json'
  listed = json.loads(file.read_text())['prices'].get(accelerator.kind)
  if listed is None or days is None:
    return {}
  hours = days * 24 * accelerator.chips * accelerator.slices
  return {'dollars': hours * listed['usd'], 'price': listed}
