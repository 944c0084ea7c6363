"""What chips cost, by the list of a day."""

import importlib.resources
import json


def of(accelerator, days):
  """{dollars, prices} of so many days, or nothing if no price is known."""
  if days is None:
    return {}
  file = importlib.resources.files('t5x_lite') / 'prices.json'
  listed = json.loads(file.read_text())
  price = listed['dollars_per_chip_hour'].get(accelerator.kind)
  if price is None:
    return {}
  chips = accelerator.chips * accelerator.slices
  return {
    'dollars': days * 24 * chips * price,
    'prices': f'{listed["kind"]}, {listed["region"]}, {listed["date"]}',
  }
