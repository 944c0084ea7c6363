"""Offline tasks on small files of the same formats, made by hand."""

import bz2
import collections
import importlib
import struct
import zlib

import pytest

from t5x_lite import errors
from t5x_lite.tasks import fetch
from t5x_lite.tasks import fetched
from t5x_lite.tasks import offline
from t5x_lite.tasks import readers
from t5x_lite.tasks import supervised

MAIL = b"""From a@b.example Mon Aug 26 2002
Received: from spam.example
Subject: =?utf-8?q?Re:_[list]_Caf=C3=A9?=
 tonight
MIME-Version: 1.0
Content-Type: multipart/alternative; boundary="x"

--x
Content-Type: text/plain; charset=no-such
Content-Transfer-Encoding: quoted-printable

At the caf=E9,
  then.
--x
Content-Type: text/html

<p>Not this</p>
--x--
"""
PAGE = """<html><p dir="auto">Menu</p>
<h1 id="hd_1" dir="auto">{0} one</h1>
<p id="par_2" class="paragraph">{0} <b>two</b> &amp; <img alt="">three</p>
<p id="par_3">Press <span class="switchinline"><span hidden="true" id="MACx"
 class="MAC"><span>Command</span></span><span hidden="true" id="defaultx"
><span>Ctrl</span></span></span>+{0}</p>
<p id="par_4">Calc</p></html>"""
WORDNET = """  1 This software is licensed.
00000001 03 n 01 entity 0 000 | that which is; "an entity it is"; "no entity"
00000002 03 n 02 dog 0 domestic_dog 0 001 @ 00000001 n 0000 | a "tame" wolf
00000003 03 n 01 cat 0 001 @ 00000001 n 0000 | it purrs
00000004 03 n 01 pug 0 001 @ 00000002 n 0000 | small dog
00000005 03 n 01 tabby 0 001 @ 00000003 n 0000 | striped cat
00000006 03 n 01 bank 0 000 | of a river; "the bank was wet"; "a green bank"
00000007 03 n 01 bank 0 000 | for money; "robbing banks pays"; "a bank closed"
"""
PACKAGES = """Package: gcc-12
Source: gcc-12 (12.2-1)
Section: devel
Description-md5: aa

Package: gcc-11-doc
Source: gcc-11
Section: doc
Description-md5: bb

Package: lone
Section: games
Description-md5: cc

Package: undescribed
Section: games
Description-md5: dd

"""
DESCRIPTIONS = """Package: gcc-12
Description-md5: aa
Description-en: GNU C compiler
 It compiles.
 .
 {}

Package: gcc-11-doc
Description-md5: bb
Description-en: documentation
 Short.

Package: lone
Description-md5: cc
Description-en: a game

""".format('word ' * 30)
INDEX = """/games/quiz/capitals:countr{y}|land:cap{ital}
/games/quiz/morse:letter:morse
"""
CAPITALS = """{Republic of }China:Beijing|Peking
Co^te|Cote\\: d'Ivoire:[San |]Pedro
Swe\\
den:Stockholm
Nowhere:
Norway:Oslo
Norway:Chri\bstiania|Kristiania
"""


def chapter(verses):
  """Files of a module with one book of one chapter: its block and places."""
  text = ''.join(verses).encode()
  packed = zlib.compress(text)
  places = [(0, 0, 0)] * 4  # headings of module, testament, book, chapter
  start = 0
  for verse in verses:
    places.append((0, start, len(verse.encode())))
    start += places[-1][2]
  places = b''.join(struct.pack('<IIH', *x) for x in places)
  return packed, struct.pack('<III', 0, len(packed), len(text)), places


def bible(module, verses):
  empty = b'', b'', b''
  return {
    f'{module}/{testament}.bz{kind}': data
    for testament, found in (('ot', chapter(verses)), ('nt', empty))
    for kind, data in zip('zsv', found)
  }


TEXTS = {
  'bibles': bible(
    'engKJV2006eb',
    ['In the <w>beginning</w>.', '\u00b6 And <i>it</i> was.', 'Same,', 'Z.'],
  )
  | bible(
    'engWEB2015eb',
    [
      '<w>At</w><note>foot <b>x</b></note><w>first</w> , God.',
      'It was so.',
      'same',
    ],
  )
  | bible('spaRV1909eb', ['EN el principio.', 'Y fu\u00e9.']),
  'descriptions': {
    'packages.txt': PACKAGES.encode(),
    'descriptions.txt': DESCRIPTIONS.encode(),
  },
  'libreoffice': {
    'en-US/text/a.html': PAGE.format('Page').encode(),
    'de/text/a.html': PAGE.format('Seite').encode(),
    'fr/text/other.html': PAGE.format('Page').encode(),
    'zh-CN/text/a.html': PAGE.format('\u9875').encode(),
  },
  'quiz': {
    'index': INDEX.encode(),
    'capitals': CAPITALS.encode(),
    'morse': b'a:.-\n',
  },
  'spam': {
    'easy-ham-1/1.txt': MAIL,
    'easy-ham-1/2.txt': b'Subject: a\n\nBuy  now\xe9',
    'spam-1/1.txt': b'Subject: b\n\nbuy NOW\xe9!',  # the same body
    'spam-1/2.txt': b'Content-Type: text/html\nSubject: FWD: a\n\n'
    b'<style>p {}</style><p>Win&nbsp;<b>big</b>',
    'spam-1/3.txt': b'',
  },
  'wordnet': {'data.noun': WORDNET.encode()},
  'zh_reviews': {
    'pos.txt': '\u597d\u3002\n\u597d\uff01\n\n'.encode(),
    'neg.txt': '\u574f\n\u597d\n'.encode(),
  },
}


@pytest.fixture
def data(tmp_path, monkeypatch):
  """The folder of fetched data, with the files above."""
  monkeypatch.setenv('T5X_LITE_DATA', str(tmp_path))
  for name, files in TEXTS.items():
    texts = [('made by hand', *file) for file in files.items()]
    fetch.write(name, fetched.THINGS[name], texts, tmp_path, tmp_path)
  return tmp_path


def rows(name):
  """Of all splits, as the reader gives them."""
  module, function, *more = offline.TASKS[name].reader
  reader = importlib.import_module(f't5x_lite.tasks.readers.{module}')
  with fetched.open_thing(offline.TASKS[name].thing) as texts:
    return list(getattr(reader, function)(texts, *more))


def pairs(name):
  return [(row.inputs, row.targets) for row in rows(name)]


# -- readers ------------------------------------------------------------------


def test_mail(data):
  [one, two, three, four] = rows('spam')
  assert one.inputs == (
    'subject: Re: [list] Caf\u00e9 tonight body: At the caf\u00e9, then.'
  )
  assert (one.document, one.targets) == ('caf\u00e9 tonight', 'ham')
  assert (two.inputs, two.targets) == ('subject: a body: Buy now\u00e9', 'ham')
  assert three.inputs == 'subject: FWD: a body: Win big'
  assert (three.document, three.targets) == (two.document, 'spam')
  assert four.inputs == 'subject:  body: '


def test_debian(data):
  long = 'It compiles. ' + ' '.join(['word'] * 30)
  assert pairs('ddtp_summarize') == [(long, 'GNU C compiler')]
  assert [(r.document, r.inputs, r.targets) for r in rows('deb_section')] == [
    ('gcc', 'documentation. Short.', 'doc'),
    ('gcc', f'GNU C compiler. {long}', 'devel'),
    ('lone', 'a game. ', 'games'),
  ]


@pytest.mark.parametrize(
  'source, family',
  [
    ('gcc-12', 'gcc'),
    ('llvm-toolchain-14', 'llvm-toolchain'),
    ('linux-signed-amd64', 'linux'),
    ('python3.11', 'python'),
    ('r-cran-abind', 'r-cran-abind'),
    ('0ad', '0ad'),
  ],
)
def test_versions_of_a_package_are_one_document(source, family):
  from t5x_lite.tasks.readers import debian

  assert debian.family(source) == family


def test_help_pages(data):
  assert pairs('lo_en_de') == [
    ('Page one', 'Seite one'),
    ('Page two & three', 'Seite two & three'),
    ('Press Ctrl+Page', 'Press Ctrl+Seite'),
  ]
  assert pairs('lo_en_fr') == []  # no page of the same name
  assert {row.document for row in rows('lo_en_zh')} == {'text/a.html'}


def test_bibles(data):
  assert [row[:3] for row in rows('bible_en_es')] == [
    ('Gen 1', 'At first, God.', 'EN el principio.'),
    ('Gen 1', 'It was so.', 'Y fu\u00e9.'),
  ]


def test_paraphrases_are_of_a_verse_or_its_neighbour(data):
  from t5x_lite.tasks.readers import bible

  found = dict(pairs('kjv_web_paraphrase'))
  assert set(found.values()) <= {'equivalent', 'not_equivalent'}
  with fetched.open_thing('bibles') as texts:
    old = list(bible.verses(texts, *bible.KJV).values())
    new = list(bible.verses(texts, *bible.WEB).values())
  assert old == ['In the beginning.', 'And it was.', 'Same,', 'Z.']
  for inputs, label in found.items():
    one, two = inputs.removeprefix('sentence1: ').split(' sentence2: ')
    same = old.index(one) == new.index(two)
    assert same == (label == 'equivalent'), inputs
    assert abs(old.index(one) - new.index(two)) <= 1
  assert 'sentence1: Same, sentence2: same' not in found


def test_wordnet(data):
  found = rows('wn_define')
  assert found[1].inputs == 'which noun means: a wolf?'
  assert found[1].targets == 'dog'
  assert found[1].more == {'answers': ['dog', 'domestic dog']}
  assert found[0].inputs == 'which noun means: that which is?'


def test_entailment_of_words_is_a_link_upwards():
  from t5x_lite.tasks.readers import wordnet

  above = {f'{kind}{n}': kind for kind in ('dog', 'cat') for n in range(40)}
  above |= {'dog': 'entity', 'cat': 'entity'}
  keys = {word: f'{n:08}' for n, word in enumerate(['entity', *above])}
  links = {word: f'001 @ {keys[kind]} n 0000' for word, kind in above.items()}

  class Texts:
    namelist = lambda self: ['data.noun']

    def read(self, name):
      return '\n'.join(
        f'{key} 03 n 01 {word} 0 {links.get(word, "000")} | x'
        for word, key in keys.items()
      ).encode()

  found = list(wordnet.entailments(Texts()))
  assert 70 < len(found) <= 82  # of each link one, in one way or another
  kinds = collections.Counter()
  for row in found:
    first, second = row.inputs.removeprefix('word1: ').split(' word2: ')
    holds = above.get(first) == second
    assert row.targets == ('entailment' if holds else 'not_entailment')
    assert row.document in (first, second)
    kinds['holds' if holds else above.get(second) == first] += 1
  assert min(kinds.values()) > 5 and len(kinds) == 3


def test_words_in_context(data):
  found = rows('wn_wic')
  assert collections.Counter(row.targets for row in found) == {
    'True': 2,
    'False': 2,
  }
  uses = [{'the bank was wet', 'a green bank'}]
  uses += [{'robbing banks pays', 'a bank closed'}]
  for row in found:
    assert row.document == 'bank' and row.inputs.endswith(' noun: bank')
    text = row.inputs.removeprefix('sentence1: ').removesuffix(' noun: bank')
    assert (set(text.split(' sentence2: ')) in uses) == (row.targets == 'True')


def test_quiz(data):
  found = {row.inputs: row for row in rows('quiz_closed_book')}
  kind = 'country'
  assert found.keys() == {
    f'{kind}: Republic of China; capital?',
    f"{kind}: Cote: d'Ivoire; capital?",
    f'{kind}: Sweden; capital?',
    f'{kind}: Norway; capital?',
  }
  answers = [row.more['answers'] for row in found.values()]
  assert answers == [
    ['Beijing', 'Peking'],
    ['San Pedro', 'Pedro'],
    ['Stockholm'],
    ['Oslo', 'Kristiania'],
  ]
  assert found[f'{kind}: Norway; capital?'].targets == 'Kristiania'


@pytest.mark.parametrize(
  'text, texts',
  [
    ('a', ['a']),
    ('a|b', ['a', 'b']),
    ('{the }cat', ['the cat', 'cat']),
    ('Rich[ard|] [I|1]', ['Richard I', 'Richard 1', 'Rich I', 'Rich 1']),
    ('{{a}b}c', ['abc', 'bc', 'c']),
    ('a\\|b\\{', ['a|b{']),
    ('a[b', ['ab']),  # brackets that are never closed
    ('a]b', ['a']),
    ('', ['']),
  ],
)
def test_quiz_notation(text, texts):
  from t5x_lite.tasks.readers import quiz

  assert quiz.expand(text) == texts


def test_quiz_notation_is_bounded():
  from t5x_lite.tasks.readers import quiz

  assert len(quiz.expand('{a|b|c}' * 30)) <= 64


def test_chinese_reviews(data):
  assert pairs('zh_sentiment')[0] == ('\u597d\u3002', 'positive')
  kept = [
    row.targets
    for split in offline.define('zh_sentiment').splits
    for row in offline.rows('zh_sentiment', split)
  ]
  assert sorted(kept) == ['negative', 'positive']  # but for marks, the same


def r_table(columns):
  """A data frame in R's own format of objects, without what R adds to it."""

  def text(value):
    value = value.encode()
    return struct.pack('>ii', 0x00040009, len(value)) + value

  def texts(values):
    return struct.pack('>ii', 16, len(values)) + b''.join(map(text, values))

  def attribute(name, value):
    return struct.pack('>ii', 0x402, 1) + text(name) + value

  rows = len(next(iter(columns.values())))
  return b''.join(
    [
      b'X\n',
      struct.pack('>iii', 2, 0x00030500, 0x00020300),
      struct.pack('>ii', 0x313, len(columns)),
      *map(texts, columns.values()),
      attribute('names', texts([*columns])),
      attribute('class', texts(['tbl_df', 'tbl', 'data.frame'])),
      attribute('row.names', struct.pack('>iiii', 13, 2, -(2**31), -rows)),
      struct.pack('>i', 254),
    ]
  )


def test_food_reviews_keep_their_own_test_split(data, monkeypatch):
  from t5x_lite.tasks.readers import reviews

  def packed(table, how):
    raw = r_table(table)
    body = zlib.compress(raw) if how == 'z' else b'2' + bz2.compress(raw)
    return struct.pack('>i', len(raw)) + body

  columns = lambda texts: {
    'product': [f'p{n}' for n in range(len(texts))],
    'review': texts,
    'score': ['great' if n % 2 else 'other' for n in range(len(texts))],
  }
  train = packed(columns([f'good<br />food {n}' for n in range(200)]), 'z')
  test = packed(columns(['Good food, 7!', 'bad']), '2')

  class Texts:
    def read(self, name):
      return {'Rdata.rdb': train + test, 'Rdata.rdx': b''}[name]

  places = {'training_data': (0, len(train))}
  places['testing_data'] = (len(train), len(test))
  monkeypatch.setattr(reviews, '_places', lambda texts: places)
  found = {
    split: readers.split(reviews.english(Texts()), split)
    for split in ('train', 'validation', 'test')
  }
  assert {row.inputs for row in found['test']} == {'Good food, 7!', 'bad'}
  assert [row.targets for row in found['test'] if row.inputs == 'bad'] == [
    'great'
  ]
  # The seventh of them is in the test split.
  assert len(found['train']) + len(found['validation']) == 199
  assert 5 < len(found['validation']) < 40


# -- splits -------------------------------------------------------------------


def test_splits_are_of_documents_and_inputs_once():
  def examples():
    for n in range(4000):
      yield readers.Row(f'd{n // 4}', f'text {n % 3000}', 'x')

  found = {x: readers.split(examples(), x) for x in ('train', 'validation')}
  found['test'] = readers.split(examples(), 'test')
  counts = {x: len(rows) for x, rows in found.items()}
  assert sum(counts.values()) == 3000
  assert 0.86 < counts['train'] / 3000 < 0.94
  assert 0.03 < counts['test'] / 3000 < 0.08
  for one, two in (('train', 'validation'), ('train', 'test')):
    for of in ('document', 'inputs'):
      assert not {getattr(x, of) for x in found[one]} & {
        getattr(x, of) for x in found[two]
      }
  order = [int(row.inputs.split()[1]) for row in found['train']]
  assert order != sorted(order)  # the first few are a sample
  assert readers.split(examples(), 'train') == found['train']


def test_equal_inputs_are_told_without_case_blanks_and_marks():
  texts = ['A b.', 'a  B!', '\u597d\u3002', '\u597d', '...', '!!', 'ab']
  rows = [readers.Row('d', text, 'x') for text in texts]
  split = readers.split_of('d')
  found = {row.inputs for row in readers.split(rows, split)}
  assert found == {'A b.', '\u597d\u3002', '...', '!!'}


# -- definitions --------------------------------------------------------------


def test_definitions_agree_with_their_readers(data):
  for name, make in offline.DEFINITIONS.items():
    assert supervised.DEFINITIONS[name] is make
    definition = make()
    assert definition.name == name
    assert definition.splits == ('train', 'validation', 'test')
    if name == 'reviews_sentiment':
      continue
    [(thing, digest)] = definition.identity().items()
    assert len(digest) == 64 and thing in fetched.THINGS
    keys = {'inputs', 'targets'}
    keys |= {'answers'} if name in ('wn_define', 'quiz_closed_book') else set()
    for split in definition.splits:
      for row in definition.read(split):
        assert row.keys() == keys
        assert row['inputs'].startswith(offline.TASKS[name].prefix)
        if labels := offline.TASKS[name].labels:
          assert definition.postprocess(row['targets']) == labels.index(
            row['targets']
          )
  assert supervised.MIXTURES['offline'].keys() == offline.DEFINITIONS.keys()


def test_what_is_not_fetched_is_named_with_its_command(tmp_path, monkeypatch):
  monkeypatch.setenv('T5X_LITE_DATA', str(tmp_path))
  with pytest.raises(errors.DataError, match='make data ONLY=quiz') as e:
    next(offline.define('quiz_closed_book').read('train'))
  assert 'python -m t5x_lite.tasks.fetch --only=quiz' in str(e.value)
  with pytest.raises(errors.DataError, match='make data ONLY=spam'):
    offline.define('spam').identity()


def test_what_is_damaged_is_named_with_its_command(data):
  file = data / 'quiz.zip'
  content = bytearray(file.read_bytes())
  content[60] ^= 1
  file.write_bytes(content)
  with pytest.raises(errors.DataError, match='damaged') as e:
    list(offline.define('quiz_closed_book').read('train'))
  assert str(file) in str(e.value)
  file.write_bytes(content[:-5])  # not the size that was written
  with pytest.raises(errors.DataError, match='not on this machine'):
    list(offline.define('quiz_closed_book').read('train'))


@pytest.mark.parametrize(
  'name, package, fix',
  [
    ('bible_en_es', 'pysword', 'tasks'),
    ('reviews_sentiment', 'rdata', 'tasks'),
  ],
)
def test_a_package_that_is_missing_is_named(
  data, monkeypatch, name, package, fix
):
  index = zlib.compress(b'never read')
  texts = [('by hand', 'Rdata.rdx', index), ('by hand', 'Rdata.rdb', b'')]
  fetch.write('reviews', fetched.THINGS['reviews'], texts, data, data)
  monkeypatch.setitem(__import__('sys').modules, package, None)
  with pytest.raises(errors.DataError, match=f'{package} is not installed'):
    list(offline.define(name).read('train'))
