"""A local Google Cloud Storage, from PyPI, whose answers can be spoilt.

Beside what gcp-storage-emulator does, requests are served at the same time, and
`ifGenerationMatch` counts.
"""

import dataclasses
import functools
import http.server
import io
import json
import logging
import re
import socket
import sys
import threading
import time
import traceback
import urllib.parse

from gcp_storage_emulator import server as emulator
from gcp_storage_emulator import storage
from gcp_storage_emulator.exceptions import NotFound
from gcp_storage_emulator.handlers import buckets

logging.getLogger('gcp_storage_emulator').setLevel(logging.CRITICAL)


def _read_data(handler, query, read=emulator._read_data):
  """The emulator's own, for which an empty object is none."""
  found = read(handler, query)
  return b'' if found is None and query.get('uploadType') else found


emulator._read_data = _read_data


@dataclasses.dataclass
class Fault:
  """What happens to requests, of a pattern of `METHOD path`."""

  pattern: str
  times: int = 1  # how often, from the first match on
  status: int | None = None  # this answer, and nothing is done
  slow: float = 0.0  # seconds before it is done
  cut: bool = False  # the connection breaks amid the request; nothing is done
  lost: bool = False  # it is done, and the connection breaks before the answer
  met: int = 0  # how often it happened


class Server:
  """Runs in threads of this process; a context manager."""

  def __enter__(self):
    self.storage = storage.Storage(use_memory_fs=True)
    self.faults, self.requests, self.lock = [], [], threading.RLock()
    self._http = _Threads(('127.0.0.1', 0), functools.partial(_Handler, self))
    threading.Thread(target=self._http.serve_forever, daemon=True).start()
    self.url = f'http://127.0.0.1:{self._http.server_address[1]}'
    self.environment = {
      'STORAGE_EMULATOR_HOST': self.url,
      'TENSORSTORE_GCS_HTTP_URL': self.url,
      'GOOGLE_AUTH_TOKEN_FOR_TESTING': 'any',  # of TensorStore
      'FSSPEC_GCS_TOKEN': 'anon',
    }
    return self

  def __exit__(self, *_):
    self._http.shutdown()
    self._http.server_close()

  def make_bucket(self, name):
    buckets.create_bucket(name, self.storage)
    return f'gs://{name}'

  def fail(self, pattern, **what):
    """Adds a Fault, and returns it."""
    self.faults.append(Fault(pattern, **what))
    return self.faults[-1]

  def fault(self, request):
    """What is to happen to a request, or None."""
    with self.lock:
      self.requests.append(request)
      for fault in self.faults:
        if fault.times > fault.met and re.search(fault.pattern, request):
          fault.met += 1
          return fault
    return None

  def names(self, bucket):
    return sorted(o['name'] for o in self.storage.get_file_list(bucket)[0])

  def generation(self, bucket, name):
    try:
      return int(self.storage.get_file_obj(bucket, name)['generation'])
    except NotFound:
      return 0


class _Threads(http.server.ThreadingHTTPServer):
  daemon_threads = True

  def handle_error(self, *_):
    """Tells what went wrong here, but not that a client left."""
    if not isinstance(sys.exception(), OSError):
      traceback.print_exc()


class _Handler(emulator.RequestHandler):
  protocol_version = 'HTTP/1.1'
  wbufsize = 1 << 16  # else each answer waits for its own acknowledgement

  def __init__(self, gcs, *arguments):
    self.gcs = gcs
    super().__init__(gcs.storage, *arguments)

  def log_message(self, *_):
    """Nothing."""

  def _do(self):
    size = int(self.headers.get('Content-Length') or 0)
    connection, self.rfile = self.rfile, io.BytesIO(self.rfile.read(size))
    if 'uploadType=multipart' in self.path:
      self._unpack()
    fault = self.gcs.fault(f'{self.command} {urllib.parse.unquote(self.path)}')
    try:
      if fault and fault.slow:
        time.sleep(fault.slow)
      if fault and fault.status:
        self._refuse(fault.status)
      elif fault and fault.cut:
        self._break()
      else:
        with self.gcs.lock:
          self._serve(bool(fault and fault.lost))
    finally:
      self.rfile = connection

  def _serve(self, lost):
    self._generation, wanted, other = self._generations()
    if wanted not in (None, self._generation):
      self._refuse(412)
    elif other is not None and other == self._generation:
      self._refuse(304)
    elif lost:
      answer, self.wfile = self.wfile, io.BytesIO()
      emulator.Router(self).handle(self.command)
      self.wfile = answer
      self._break()
    else:
      emulator.Router(self).handle(self.command)

  def _break(self):
    """Closes the connection, as if it had been cut amid the request."""
    self.close_connection = True
    self.connection.shutdown(socket.SHUT_RDWR)

  do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = _do  # noqa: N815

  _generation = 0

  def _refuse(self, status):
    content = json.dumps({'error': {'code': status, 'message': 'injected'}})
    content = content if status >= 400 else ''
    self.send_response(status)
    self.send_header('Content-Length', str(len(content)))
    self.end_headers()
    self.wfile.write(content.encode())

  def end_headers(self):
    """As the real one tells of each object that is read."""
    if self.command == 'GET' and 'alt=media' in self.path:
      self.send_header('x-goog-generation', str(self._generation))
    super().end_headers()

  def _unpack(self):
    """A multipart upload as a plain one: the emulator would change bytes."""
    mark = self.headers['Content-Type'].partition('boundary=')[2].strip('\'"')
    _, head, rest = self.rfile.getvalue().split(f'--{mark}'.encode(), 2)
    end = b'\r\n' if rest.startswith(b'\r\n') else b'\n'
    name = json.loads(head.split(end * 2, 1)[1])['name']
    data = rest.split(end * 2, 1)[1]
    data = data[: data.rindex(end + f'--{mark}'.encode())]
    self.rfile = io.BytesIO(data)
    self.headers.replace_header('Content-Length', str(len(data)))
    self.headers.replace_header('Content-Type', 'application/octet-stream')
    self.path = self.path.replace('multipart', 'media', 1)
    self.path += f'&name={urllib.parse.quote(name, safe="")}'

  def _generations(self):
    """Those of the object: what it is, should be, and should not be."""
    path, _, query = self.path.partition('?')
    query = urllib.parse.parse_qs(query)
    bucket, _, name = path.partition('/b/')[2].partition('/o')
    name = urllib.parse.unquote(name.removeprefix('/'))
    if not name and 'name' in query:
      [name] = query['name']
    asked = (
      int(query[key][0]) if key in query else None
      for key in ('ifGenerationMatch', 'ifGenerationNotMatch')
    )
    return self.gcs.generation(bucket, name), *asked
