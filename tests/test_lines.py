"""Lines in any shape: each an example, or one message that says which."""

import io
import json
import os
import threading
import types

import pytest

from t5x_lite import errors
from t5x_lite import lines


def examples(content, tmp_path, name='in.txt', **options):
  file = tmp_path / name
  file.write_bytes(content)
  found = lines.Lines(str(file), **options)
  return [found.example(*line) for line in found]


@pytest.mark.parametrize(
  'content, texts',
  [
    (b'', []),
    (b'\n', ['']),
    (b'a', ['a']),
    (b'a\n', ['a']),
    (b'a\n\n\nb', ['a', '', '', 'b']),
    (b'same\nsame\nsame\n', ['same', 'same', 'same']),
    (b'a\r\nb\r\n', ['a', 'b']),
    (b'a\r\r\nb\rc\n', ['a\r', 'b\rc']),
    (b'\xef\xbb\xbfa\n\xef\xbb\xbfb\n', ['a', '\ufeffb']),
    (b'\0 \x1b[0m\x0b\x0c\x85'.replace(b'\x85', b'\xc2\x85'), None),
    ('\u2028 \u202e ☃ e\u0301\n'.encode(), ['\u2028 \u202e ☃ e\u0301']),
  ],
)
def test_text_lines_are_kept_as_they_are(content, texts, tmp_path):
  texts = [content.decode()] if texts is None else texts
  assert [e['inputs'] for e in examples(content, tmp_path)] == texts


def test_json_lines_keep_what_else_they_have(tmp_path):
  wanted = [
    {'id': 3, 'inputs': 'a\nb', 'deep': {'x': [1.5, None, True]}},
    {'inputs': ''},
    {'inputs': '<extra_id_0>\0', 'n': 10**30},
  ]
  content = '\r\n'.join(json.dumps(e) for e in wanted).encode()
  for name in ('in.jsonl', 'in.json', 'in.ndjson'):
    assert examples(content, tmp_path, name) == wanted
  assert examples(content, tmp_path, 'in', format='jsonl') == wanted
  assert len(examples(content, tmp_path, format='text')) == 3


def test_another_field(tmp_path):
  content = b'{"text": "a", "inputs": 5}'
  [found] = examples(content, tmp_path, 'in.jsonl', field='text')
  assert found == {'text': 'a', 'inputs': 5}
  assert examples(b'a', tmp_path, field='text') == [{'text': 'a'}]


def test_targets(tmp_path):
  both = {'inputs': 'a', 'targets': 'b'}
  assert examples(b'a\tb\r\n', tmp_path, scored=True) == [both]
  content = json.dumps(both).encode()
  assert examples(content, tmp_path, 'in.jsonl', scored=True) == [both]
  assert examples(b'\t', tmp_path, scored=True) == [
    {'inputs': '', 'targets': ''}
  ]


@pytest.mark.parametrize(
  'line, options, words',
  [
    (b'Gr\xfc\xdfe', {}, ['not UTF-8', 'byte 2']),
    (b'\xff\xfea\0', {}, ['not UTF-8']),
    (b'no targets', {'scored': True}, ['no targets', '--format=jsonl']),
    (b'a\tb\tc', {'scored': True}, ['more tabs', '2']),
    (b'', {'format': 'jsonl'}, ['not a line of JSON']),
    (b'{"inputs": "a"', {'format': 'jsonl'}, ['not a line of JSON']),
    (b'{"inputs": "a", "x": NaN}', {'format': 'jsonl'}, ['NaN']),
    (b'{"inputs": "a", "x": 1e999}', {'format': 'jsonl'}, ['1e999']),
    (b'[' * 100_000, {'format': 'jsonl'}, ['not a line of JSON']),
    (b'["a"]', {'format': 'jsonl'}, ['not an object', 'list']),
    (b'{"text": "a"}', {'format': 'jsonl'}, ["'inputs'", "'text'", '--field']),
    (b'{"inputs": 5}', {'format': 'jsonl'}, ['int in it']),
    (b'{"inputs": null}', {'format': 'jsonl'}, ['NoneType']),
    (b'{"inputs": "\\ud800"}', {'format': 'jsonl'}, ['surrogate', 'ud800']),
    (
      b'{"inputs": "a"}',
      {'format': 'jsonl', 'scored': True},
      ["'targets'", "fields 'inputs'"],
    ),
  ],
)
def test_bad_lines_are_named(line, options, words, tmp_path):
  first = b'{"inputs": "a", "targets": "b"}\n'
  if options.get('format') != 'jsonl':
    first = b'a\tb\n'
  with pytest.raises(errors.DataError) as e:
    examples(first + line + b'\n', tmp_path, **options)
  assert 'in.txt:2' in str(e.value)
  assert len(str(e.value)) < 1000
  for word in words:
    assert word in str(e.value)


def test_a_digest_tells_contents_apart(tmp_path):
  found = {}
  for content in (b'', b'\n', b'a\nb', b'a\nb\n', b'ab\n', b'\na'):
    (tmp_path / 'in').write_bytes(content)
    count, digest = lines.Lines(str(tmp_path / 'in')).digest()
    found[digest] = content
    assert count == len(content.splitlines())
  assert len(found) == 6


def test_streams_are_read_once_or_kept(tmp_path, monkeypatch):
  stdin = types.SimpleNamespace(buffer=io.BytesIO(b'a\nb\n'))
  monkeypatch.setattr('sys.stdin', stdin)
  found = lines.Lines()
  assert found.is_stream
  found.keep()
  assert not found.is_stream
  assert list(found) == list(found) == [(1, b'a\n'), (2, b'b\n')]
  assert found.place(2) == 'stdin:2'

  pipe = tmp_path / 'pipe.jsonl'
  os.mkfifo(pipe)
  writer = threading.Thread(target=pipe.write_bytes, args=[b'x\n'], daemon=True)
  writer.start()
  found = lines.Lines(str(pipe))
  assert found.is_stream and found.is_json
  found.keep()
  writer.join()
  assert found.digest() == found.digest()
  assert list(found) == [(1, b'x\n')]


def test_results_are_json_for_any_reader():
  line = lines.to_json({'inputs': 'é', 'score': -1.5})
  assert line == '{"inputs": "é", "score": -1.5}\n'.encode()
  half = {'other': '\ud800'}
  assert json.loads(lines.to_json(half).decode()) == half
  with pytest.raises(errors.NumericError, match='--step'):
    lines.to_json({'score': float('nan')})
