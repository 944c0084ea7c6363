"""Offline tasks on the real texts: sizes, balance, and nothing on two sides."""

import collections

import pytest

from t5x_lite.tasks import fetched
from t5x_lite.tasks import offline
from t5x_lite.tasks import readers

pytestmark = pytest.mark.data
SPLITS = ('train', 'validation', 'test')
# Examples of each split, share of the most frequent target of the second.
FACTS = {
  'reviews_sentiment': ((3563, 409, 1000), 68.2),
  'spam': ((5081, 215, 421), 67.9),
  'ddtp_summarize': ((40624, 2072, 1935), 0.1),
  'lo_en_de': ((30883, 1307, 1524), 0.2),
  'lo_en_fr': ((29757, 1308, 1210), 0.2),
  'lo_en_zh': ((21661, 1004, 869), 0.2),
  'bible_en_es': ((27540, 1611, 1551), 0.1),
  'kjv_web_paraphrase': ((27602, 1628, 1548), 52.0),
  'wn_wic': ((7099, 376, 365), 50.3),
  'wn_entail': ((66261, 3319, 4007), 50.2),
  'wn_define': ((104900, 5951, 5866), 0.5),
  'quiz_closed_book': ((1820, 87, 95), 2.3),
  'deb_section': ((55540, 2802, 2572), 10.2),
  'zh_sentiment': ((15618, 875, 884), 50.4),
}


def test_all_tasks_are_told():
  assert FACTS.keys() == offline.TASKS.keys()


@pytest.mark.parametrize('name', offline.TASKS)
def test_task(name):
  thing = offline.TASKS[name].thing
  told = fetched.manifest(thing)
  if told is None:
    pytest.skip(f'{thing} is not fetched: make data ONLY={thing}')
  sizes, most = FACTS[name]
  found = {split: list(offline.rows(name, split)) for split in SPLITS}
  for one, two in (SPLITS[:2], SPLITS[1:], SPLITS[::2]):
    for key in (lambda x: x.document, lambda x: readers.folded(x.inputs)):
      assert not set(map(key, found[one])) & set(map(key, found[two]))
  counts = [len(rows) for rows in found.values()]
  targets = collections.Counter(row.targets for row in found['validation'])
  share = 100 * targets.most_common(1)[0][1] / counts[1]
  if labels := offline.TASKS[name].labels:
    assert targets.keys() == set(labels)
  for rows in found.values():
    for row in rows:
      assert row.inputs == readers.plain(row.inputs) and row.inputs
      assert row.targets == readers.plain(row.targets) and row.targets
      assert not row.more or row.targets in row.more['answers']
  if told['sha256'] == fetched.THINGS[thing].sha256:
    assert (tuple(counts), round(share, 1)) == (sizes, most)
  else:  # it moved on: about as many
    assert counts == pytest.approx(sizes, rel=0.2, abs=20)
