"""What holds the processes of a run together while it runs."""

import contextlib
import json
import os
import sys
import threading
import time

from t5x_lite import errors
from t5x_lite.processes import meeting

BEAT = 1.0  # seconds between signs of life
LAG = 2  # steps that a process may be ahead of another


class Group:
  """The connections of this process: of process 0 to all, of others to it."""

  def __init__(self, place, facts):
    """Meets the others; see `join`."""
    self.place = place
    self._ending = threading.Lock()
    self._stop = None  # (step, signal name) once it is agreed
    self._wanted = None  # the signal of a process that asks to stop
    self._asked = False
    self._inside = False  # of `first`, which may be nested
    meet = meeting.call_in if place.index else meeting.call_roll
    self._peers = meet(place, facts)  # of process 0 all, of others process 0
    for peer in self._peers.values():
      peer.socket.settimeout(None)
      threading.Thread(target=self._listen, args=[peer], daemon=True).start()
    threading.Thread(target=self._watch, daemon=True).start()

  # -- living -----------------------------------------------------------------

  def _watch(self):
    """Gives signs of life, and looks for those of the others."""
    while True:
      time.sleep(BEAT)
      for peer in list(self._peers.values()):
        peer.send(kind='beat')
        quiet = time.monotonic() - peer.heard
        if not peer.finished and quiet > self.place.silence:
          self._lost(peer, f'has given no sign of life for {quiet:.0f} s')

  def _listen(self, peer):
    """Reads what a peer says, until it is gone."""
    try:
      while message := peer.receive():
        self._hear(peer, message)
    except (OSError, ValueError):
      pass
    if not peer.finished:
      self._lost(peer, 'is gone: it ended without a word')

  def _hear(self, peer, message):
    peer.heard = time.monotonic()
    kind = message.pop('kind')
    if kind == 'value':
      peer.inbox.put(message)
    elif kind == 'fault':
      who = f'process {peer.index}: ' if self.place.index == 0 else ''
      text = message['text'] and who + message['text']
      self.fail(text, message['exit_code'])
    elif kind == 'stop':
      if self.place.index == 0:
        self._wanted = message['name']
      else:
        self._stop = message['step'], message['name']
        peer.send(kind='knows')
    elif kind == 'knows':
      peer.knows.set()
    elif kind == 'bye':
      peer.finished = True

  def _lost(self, peer, how):
    text, code = f'process {peer.index} {how}', errors.DeviceError.exit_code
    if peer.index == 0:
      # At once: JAX's client aborts when it notices the same.
      _show(text)
      os._exit(code)
    self.fail(text, code)

  def fail(self, text, exit_code):
    """Ends all processes; process 0 shows the text, if there is one."""
    if not self._ending.acquire(blocking=False):
      time.sleep(60)  # another thread is about to end this process
    _show(text if self.place.index == 0 else None)
    self._tell(kind='fault', text=text, exit_code=exit_code)
    # So that no process takes the end of this one for the cause; process 0
    # goes last, since JAX aborts whoever outlives it, with words of its own.
    time.sleep(BEAT if self.place.index else 2 * BEAT)
    # Python's own way out waits for the others, by a barrier of JAX's.
    os._exit(exit_code)

  def finish(self):
    """Says that this process needs the others no more."""
    for peer in self._peers.values():
      peer.send(kind='bye')

  # -- agreeing ---------------------------------------------------------------

  def first(self, make):
    if self._inside:
      return make()
    if self.place.index:
      message = self._peers[0].inbox.get()
      if 'error' in message:
        cls = getattr(errors, message.pop('error'))
        error = cls(message.pop('what'), **message)
        error.told = True
        raise error
      return message['value']
    self._inside = True
    try:
      value = make()
    except errors.UserError as e:
      self._tell(
        kind='value',
        error=type(e).__name__,
        what=e.what,
        **{
          name: None if (x := getattr(e, name)) is None else str(x)
          for name in ('where', 'got', 'expected', 'fix')
        },
      )
      raise
    finally:
      self._inside = False
    self._tell(kind='value', value=value)
    return value

  def _tell(self, **message):
    for peer in self._peers.values():
      peer.send(**message)

  def gather(self, value):
    """In process 0 the values of all, in order; elsewhere nothing."""
    if self.place.index:
      self._peers[0].send(kind='value', value=value)
      return []
    # As they come out of JSON.
    found = [json.loads(json.dumps(value))]
    for n in range(1, self.place.count):
      found.append(self._peers[n].inbox.get()['value'])
    return found

  def stop_at(self, step, wanted):
    if wanted and not self._asked and self.place.index:
      self._asked = True
      self._peers[0].send(kind='stop', name=wanted)
    wanted = wanted or self._wanted
    if self.place.index == 0 and wanted and self._stop is None:
      self._stop = step + LAG + 1, wanted
      self._tell(kind='stop', step=self._stop[0], name=wanted)
      for peer in self._peers.values():
        peer.knows.wait()
    return self._stop


def _show(text):
  """Prints a last line, if there is one, on whatever can still be written."""
  with contextlib.suppress(OSError):
    sys.stdout.flush()
  with contextlib.suppress(OSError):
    if text:
      print(f't5x_lite: {text}', file=sys.stderr, flush=True)
