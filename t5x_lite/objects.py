"""Objects of Google Cloud Storage, by gcsfs: what files have no word for."""

import base64
import contextlib
import functools
import json
import logging
import os
import platform
import sys
import threading
import time
import uuid

from t5x_lite import errors

# Paths are etils', which would reach buckets through TensorFlow: by a client of
# its own, loaded for nothing else, that cannot be pointed at another server.
os.environ['EPATH_USE_TF'] = 'false'
# A look-up of each bucket's kind, by gRPC; objects are the same in all of them.
os.environ.setdefault('GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT', 'false')

_RENEWED = 15.0  # seconds between signs of life of whoever holds a lock
_PATIENCE = 60.0  # seconds without one after which a lock is taken over


@functools.cache
def filesystem():
  """Google Cloud Storage, as gcsfs and fsspec have it.

  What may pass is tried again, over half a minute: answers 429 and 5xx, and
  connections that break.

  Raises:
    StorageError: gcsfs is not installed.
  """
  import fsspec

  # TensorStore writes past gcsfs, and other processes do: no listing is kept.
  fsspec.config.conf.setdefault('gcs', {})['use_listings_cache'] = False
  logging.getLogger('gcsfs').setLevel(logging.CRITICAL)  # errors are raised too
  try:
    return fsspec.filesystem('gcs', finalize_on_close=True)
  except ImportError as e:
    raise errors.StorageError(
      'gs:// needs a package that is not installed',
      got=e.name or e,
      fix="pip install 't5x_lite[gcs]'",
    ) from e


def is_fault(error):
  """Whether an exception is one of this storage, or of the way to it."""
  return f'{type(error).__module__}.'.startswith(
    (
      'aiohttp.',
      'gcsfs.',
      'google.api_core.',
      'google.auth.',
      'google.cloud.',
      'requests.',
    )
  )


@contextlib.contextmanager
def failures(what, where):
  """Says of which object a request failed."""
  try:
    yield
  except Exception as e:
    if not (is_fault(e) or isinstance(e, OSError)):
      raise
    got = ' '.join(str(e).split()) or type(e).__name__
    if isinstance(e, FileNotFoundError):
      got = 'no such bucket or object'
    raise errors.StorageError(
      what,
      where=where,
      got=got,
      fix='look at the name of the bucket and at your rights in it',
    ) from e


def write(name, data):
  """Writes an object in one request, which does all or nothing."""
  with failures('cannot write', name):
    filesystem().pipe_file(str(name), data)


def read(name, start, end):
  """Bytes [start, end) of an object; fewer if it is shorter."""
  with failures('cannot read', name):
    return filesystem().cat_file(str(name), start=start, end=end)


def checksum(name):
  """(bytes, CRC-32C) of an object, as the store has them."""
  return _checksum(filesystem().info(str(name)))


def checksums(folder):
  """{name in the folder: (bytes, CRC-32C)} of all objects under it."""
  store = filesystem()
  prefix = store._strip_protocol(str(folder)) + '/'  # pylint: disable=protected-access
  found = store.find(str(folder), detail=True)
  return {
    name.removeprefix(prefix): _checksum(entry) for name, entry in found.items()
  }


def _checksum(entry):
  digest = base64.b64decode(entry['crc32c'])
  return entry['size'], int.from_bytes(digest, 'big')


# -- one process a folder -----------------------------------------------------


@contextlib.contextmanager
def lock(name):
  """Keeps other processes, on any machine, from the same meanwhile.

  The lock is an object that is created only where there is none, and renewed
  while it is held. One that is not renewed for a minute is taken over: no
  clocks are compared, the other's signs of life are counted. A process that
  finds that it lost its lock (it was suspended, say) ends at once.

  Args:
    name: of the object.

  Raises:
    StorageError: it is held by another process, or can't be written.
  """
  held = _Lock(str(name))
  with failures('cannot write', name):
    held.take()
  done = threading.Event()
  renewer = threading.Thread(target=held.renew, args=[done], daemon=True)
  renewer.start()
  try:
    yield
  finally:
    done.set()
    renewer.join()
    held.release()


class _Lock:
  def __init__(self, name):
    self._name, self._store = name, filesystem()
    self._bucket, self._key, _ = self._store.split_path(name)
    self._me = {
      'process': os.getpid(),
      'host': platform.node(),
      'id': uuid.uuid4().hex,
    }

  def _call(self, method, generation, **more):
    return self._store.call(
      method,
      'b/{}/o/{}',
      self._bucket,
      self._key,
      ifGenerationMatch=generation,
      **more,
    )

  def _look(self):
    """(who holds it, its generation, its signs of life), or None."""
    with contextlib.suppress(FileNotFoundError, ValueError):
      entry = self._store.info(self._name)
      holder = json.loads(self._store.cat_file(self._name))
      return holder, entry['generation'], entry['metageneration']
    return None

  def take(self):
    data = json.dumps(self._me).encode()
    while True:
      try:
        self._store.pipe_file(self._name, data, mode='create')
      except FileExistsError:
        found = self._look()
        # It is ours if the answer to an earlier try was lost on the way.
        if found and found[0] != self._me:
          self._remove_stale(*found)
      found = self._look()
      if found and found[0] == self._me:
        self._generation = found[1]
        return

  def _remove_stale(self, holder, generation, signs):
    """Waits for a sign of life of the holder: raises if there is one."""
    if not self._is_gone(holder):
      until = time.monotonic() + _PATIENCE
      print(
        f'waiting {_PATIENCE:.0f} s to see whether {_who(holder)} still '
        'trains here',
        flush=True,
      )
      while time.monotonic() < until:
        time.sleep(min(1.0, _PATIENCE / 4))
        found = self._look()
        if found is None:
          return  # it was let go
        if found != (holder, generation, signs):
          raise errors.StorageError(
            'another process trains here',
            where=self._name,
            got=_who(found[0]),
            fix='wait for it, stop it, or choose another --workdir',
          )
    with contextlib.suppress(FileNotFoundError, FileExistsError):
      self._call('DELETE', generation)

  def _is_gone(self, holder):
    """Whether the holder was a process of this machine that has ended."""
    if holder['host'] != self._me['host']:
      return False
    if holder['process'] == self._me['process']:
      return True  # of an earlier life of this machine
    try:
      os.kill(holder['process'], 0)
    except ProcessLookupError:
      return True
    except OSError:
      pass
    return False

  def renew(self, done):
    """Gives signs of life; ends the process if another took the lock."""
    while not done.wait(_RENEWED):
      try:
        self._call('PATCH', self._generation, json={'metadata': self._me})
      except (FileNotFoundError, FileExistsError):  # gone, or another's
        print(
          f't5x_lite: another process took over {self._name}: this one was not '
          'heard of for a minute',
          file=sys.stderr,
          flush=True,
        )
        os._exit(errors.StorageError.exit_code)
      except Exception:  # pylint: disable=broad-except
        pass  # whatever it was: the next sign of life is due soon

  def release(self):
    with contextlib.suppress(Exception):  # then it is found stale
      self._call('DELETE', self._generation)


def _who(holder):
  return f'process {holder["process"]} on {holder["host"]}'
