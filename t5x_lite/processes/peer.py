"""A connection to another process of a run."""

import json
import queue
import socket
import threading
import time

_MOST = 1 << 24  # bytes of a message


class Peer:
  """A connection to another process: a JSON object a line."""

  def __init__(self, index, connection):
    self.index, self.socket = index, connection
    self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    self._file = self.socket.makefile('rb')
    self._lock = threading.Lock()
    self.heard = time.monotonic()
    self.finished = False
    self.inbox = queue.SimpleQueue()
    self.knows = threading.Event()  # when to stop

  def send(self, **message):
    """Whether it could be sent; who is gone is noticed by the listener."""
    line = json.dumps(message).encode() + b'\n'
    try:
      with self._lock:
        self.socket.sendall(line)
    except OSError:
      return False
    return True

  def close(self):
    self._file.close()
    self.socket.close()

  def receive(self):
    """The next message, or None at the end."""
    line = self._file.readline(_MOST)
    if not line:
      return None
    message = json.loads(line)
    if not isinstance(message, dict):
      raise ValueError('not a message')
    return message
