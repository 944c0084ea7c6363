"""Writes the golden records of all recipes, and the table in gin/README.md.

Run `python tests/golden/make_records.py` after a recipe or specs/ changed,
and read the difference before it is committed.
"""

import pathlib
import shutil

from t5x_lite import config
from t5x_lite import recipes
from t5x_lite import record as records

RECORDS = pathlib.Path(__file__).parent / 'records'
README = pathlib.Path(__file__).parents[2] / 'gin' / 'README.md'
INTRO = """\
# Recipes

`t5x_lite train --gin_file=t5/1_1_base --workdir=DIR` trains one;
`--gin.Run.steps=10` and the like change a setting, and `include
't5/1_1_base.gin'` starts a recipe of your own from it. A recipe can name
nothing but the classes and fields of `t5x_lite/specs/`: it runs no code.

"""


def record_json(name):
  """The resolved record of an installed recipe."""
  return records.to_json(records.record(config.load([name])))


def readme():
  """gin/README.md, from the headers of the recipes."""
  rows = [
    '| recipe | system | parameters | what | paper |',
    '|---|---|---:|---|---|',
  ]
  for recipe in recipes.table():
    rows.append(
      f'| `{recipe.name}` | {recipe.system} | {recipe.parameters:,} '
      f'| {recipe.summary} | {recipe.paper} |'
    )
  return INTRO + '\n'.join(rows) + '\n'


if __name__ == '__main__':
  shutil.rmtree(RECORDS, ignore_errors=True)
  for recipe_name in recipes.names():
    golden = RECORDS / f'{recipe_name}.json'
    golden.parent.mkdir(parents=True, exist_ok=True)
    golden.write_text(record_json(recipe_name), encoding='utf-8')
  README.write_text(readme(), encoding='utf-8')
