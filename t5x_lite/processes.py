"""The processes of one run: they meet, compare what they run, and end together.

Process 0 listens at the coordinator's address, before JAX does. The others
call there and say what they are about to run, so that a process that is
missing, or that runs something else, is named before any device is touched.
The connections stay: whoever is gone or silent is named within seconds, and
what process 0 decides is told over them. (JAX's own service knows processes by
a heartbeat alone, and ends the others without a word of ours.)

Process 0 alone prints, and writes what one should write. In a run of one
process everything here does nothing.
"""

import contextlib
import dataclasses
import json
import os
import queue
import socket
import sys
import threading
import time
import traceback

from t5x_lite import errors

_MOST = 1 << 24  # bytes of a message
_BEAT = 1.0  # seconds between signs of life
_group = None  # the Group that this process is in, or None


@dataclasses.dataclass(frozen=True)
class Place:
  """Which process this is, of how many, and where process 0 listens.

  Attributes:
    address: host:port of process 0.
    count: of processes.
    index: of this one.
    timeout: seconds in which all must be there.
    silence: seconds without a sign of life after which a process is given up.
  """

  address: str
  count: int
  index: int
  timeout: float = 300
  silence: float = 30

  def __post_init__(self):
    host, _, port = self.address.rpartition(':')
    if not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
      raise errors.ConfigError(
        'wrong coordinator address',
        where='--coordinator_address',
        got=self.address,
        expected='HOST:PORT',
      )
    if not 0 <= self.index < self.count:
      raise errors.ConfigError(
        'wrong process index',
        where='--process_index',
        got=self.index,
        expected=f'0 to {self.count - 1}, as --process_count is {self.count}',
      )

  @property
  def host_port(self):
    host, _, port = self.address.rpartition(':')
    return host.strip('[]'), int(port)


def detect(timeout=300):
  """The Place that a TPU pod, SLURM, GKE or MPI gives this process.

  JAX detects them, but not by a public function.
  """
  from jax._src import clusters

  found = clusters.ClusterEnv.auto_detect_unset_distributed_params(
    None, None, None, None, None, timeout
  )
  if None in found[:3]:
    raise errors.DeviceError(
      'no cluster is found here',
      where='--multiprocess',
      expected='a TPU pod, SLURM, Kubernetes or Open MPI',
      fix='give --coordinator_address, --process_count and --process_index',
    )
  return Place(*found[:3], timeout=timeout)


def index():
  return _group.place.index if _group else 0


def count():
  return _group.place.count if _group else 1


def is_first():
  return index() == 0


def say(line):
  """Prints a line, in process 0."""
  if is_first():
    print(line, flush=True)


def first(make):
  """What `make()` returns in process 0, where alone it runs: plain JSON.

  A UserError that it raises is raised in every process.
  """
  return make() if _group is None else _group.first(make)


def same(name, value):
  """Raises a DeviceError, in every process, unless all have the same value."""
  if _group is None:
    return
  values = _group.gather(value)
  first(lambda: _compare({name: dict(enumerate(values))}))


def stop_at(step, wanted):
  """The step after which all processes are to stop, or None.

  To be asked in each step of a loop, by every process. The answer lies far
  enough ahead that no process can have passed it: none is more than LAG steps
  ahead of another.

  Args:
    step: the step of the caller.
    wanted: the name of a signal that asks this process to stop, or None.

  Returns:
    (step, name of the signal), or None.
  """
  if _group is None:
    return (step, wanted) if wanted else None
  return _group.stop_at(step, wanted)


LAG = 2  # a step starts once the one before the last is known to be done


def _compare(facts):
  """Raises unless each fact, a dict of process to value, is one value."""
  for name, values in facts.items():
    others = [n for n, value in values.items() if value != values[0]]
    if others:
      raise errors.DeviceError(
        f'processes differ in {name}',
        got=f'{values[others[0]]} in process {others[0]}'
        + (f' and {len(others) - 1} more' if others[1:] else ''),
        expected=f'{values[0]}, as in process 0',
        fix='start all of them by the same command and installation',
      )


def join(place, facts):
  """Meets the other processes and starts JAX on all of them.

  Args:
    place: Place.
    facts: dict of names to JSON, that must be the same in all processes.

  Raises:
    DeviceError: a process is missing, or differs.
  """
  global _group
  group = Group(place)
  group.meet(facts)
  import jax  # not for `--help`

  # Ours are told by name, and sooner; JAX's would swallow SIGTERM.
  jax.config.update('jax_enable_preemption_service', False)
  host, port = place.host_port
  jax.distributed.initialize(
    place.address,
    place.count,
    place.index,
    initialization_timeout=int(place.timeout),
    heartbeat_timeout_seconds=int(10 * place.silence),
    coordinator_bind_address=os.environ.get(
      'JAX_COORDINATOR_BIND_ADDRESS', f'{_bracket(host)}:{port}'
    ),
  )
  _group = group


def _bracket(host):
  return f'[{host}]' if ':' in host else host


def fail(text, exit_code):
  """Ends all processes for one cause, which process 0 prints.

  Does not return in a run of several processes.
  """
  if _group is not None:
    if index():
      time.sleep(_BEAT)  # all may have met the same: process 0 then tells it
    _group.fail(text, exit_code)


def crash(error):
  """Ends all processes for an error that no one foresaw, with its traceback.

  Does not return in a run of several processes.
  """
  if _group is not None:
    # It may only follow from the end of another process, to be told as that.
    time.sleep(4 * _BEAT)
    traceback.print_exception(error)
    lines = str(error).splitlines()
    _group.fail(f'{type(error).__name__}: {lines[0] if lines else ""}', 1)


class Group:
  """The connections of this process: of process 0 to all, of others to it."""

  def __init__(self, place):
    self.place = place
    self._peers = {}  # index -> Peer
    self._ending = threading.Lock()
    self._stop = None  # (step, signal name) once it is agreed
    self._wanted = None  # the signal of a process that asks to stop
    self._asked = False
    self._inside = False  # of `first`, which may be nested

  # -- meeting ----------------------------------------------------------------

  def meet(self, facts):
    with contextlib.ExitStack() as stack:
      if self.place.index == 0:
        self._call_roll(stack, facts)
      else:
        self._call_in(facts)
    for peer in self._peers.values():
      peer.socket.settimeout(None)
      threading.Thread(target=self._listen, args=[peer], daemon=True).start()
    threading.Thread(target=self._watch, daemon=True).start()

  def _call_roll(self, stack, facts):
    """Process 0: waits for the others, compares, and lets all go on."""
    place = self.place
    where = os.environ.get('JAX_COORDINATOR_BIND_ADDRESS')
    host, port = (Place(where, place.count, 0) if where else place).host_port
    try:
      family = socket.AF_INET6 if ':' in host else socket.AF_INET
      server = socket.create_server((host, port), family=family)
    except OSError as e:
      raise errors.DeviceError(
        'process 0 cannot listen',
        where=f'{host}:{port}',
        got=e.strerror or e,
        fix='choose another port by --coordinator_address',
      ) from e
    stack.enter_context(server)
    said = {0: facts}
    deadline = time.monotonic() + place.timeout
    fault = None
    while fault is None and len(said) < place.count:
      server.settimeout(max(deadline - time.monotonic(), 0.001))
      try:
        peer = Peer(None, server.accept()[0])
        peer.socket.settimeout(5)
        hello = peer.receive()
        peer.index, theirs = hello['index'], hello['facts']
        fits = 0 < peer.index < place.count == hello['count']
      except TimeoutError:
        if time.monotonic() >= deadline:
          fault = self._missing(said)
        continue
      except (OSError, ValueError, LookupError, TypeError):
        continue  # not one of ours
      if not fits or peer.index in said:
        fault = errors.DeviceError(
          f'process {peer.index} of {hello["count"]} calls in',
          where=place.address,
          expected=f'each of 1 to {place.count - 1} once',
          fix='give each process its own --process_index, all the same'
          ' --process_count, and each run its own port',
        )
        peer.send(kind='fault', text=str(fault), exit_code=fault.exit_code)
      else:
        self._peers[peer.index], said[peer.index] = peer, theirs
    try:
      if fault:
        raise fault
      _compare(
        {name: {n: said[n].get(name) for n in sorted(said)} for name in facts}
      )
    except errors.UserError as e:
      for peer in self._peers.values():
        peer.send(kind='fault', text=str(e), exit_code=e.exit_code)
      raise
    for peer in self._peers.values():
      peer.send(kind='go')

  def _missing(self, said):
    missing = sorted(set(range(self.place.count)) - said.keys())
    some = ', '.join(map(str, missing[:8])) + ', ...' * (len(missing) > 8)
    return errors.DeviceError(
      f'{len(missing)} of {self.place.count} processes did not call in'
      f' within {self.place.timeout:g} s',
      where=self.place.address,
      got=f'no word of process {some}',
      fix='start each of them, with the same --coordinator_address',
    )

  def _call_in(self, facts):
    """Other processes: find process 0, and wait for its word."""
    place = self.place
    deadline = time.monotonic() + place.timeout
    while True:
      try:
        found = socket.create_connection(place.host_port, timeout=5)
        break
      except OSError as e:
        if time.monotonic() > deadline:
          raise errors.DeviceError(
            f'process 0 did not answer within {place.timeout:g} s',
            where=place.address,
            got=e.strerror or e,
            fix='start it, and let the others reach that port',
          ) from e
      time.sleep(0.2)
    peer = self._peers[0] = Peer(0, found)
    peer.send(kind='hello', index=place.index, count=place.count, facts=facts)
    # It answers when the last one is there; it has the same deadline.
    found.settimeout(max(deadline - time.monotonic(), 0) + 10)
    try:
      answer = peer.receive()
    except (OSError, ValueError) as e:
      answer = {'kind': 'fault', 'text': f'process 0: {e}', 'exit_code': 6}
    if answer['kind'] == 'fault':
      error = errors.DeviceError(answer['text'])
      error.exit_code = answer['exit_code']
      error.told = True  # process 0 prints it
      raise error

  # -- living -----------------------------------------------------------------

  def _watch(self):
    """Gives signs of life, and looks for those of the others."""
    while True:
      time.sleep(_BEAT)
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
      self.fail(who + message['text'], message['exit_code'], message['printed'])
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
    if peer.index == 0:
      print(f't5x_lite: process 0 {how}', file=sys.stderr)
    code = errors.DeviceError.exit_code
    self.fail(f'process {peer.index} {how}', code, printed=peer.index == 0)

  def fail(self, text, exit_code, printed=False):
    if not self._ending.acquire(blocking=False):
      time.sleep(60)  # another thread is about to end this process
    if self.place.index == 0 and not printed:
      print(f't5x_lite: {text}', file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    self._tell(kind='fault', text=text, exit_code=exit_code, printed=printed)
    # So that no process takes the end of this one for the cause.
    time.sleep(_BEAT)
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

  def receive(self):
    """The next message, or None at the end."""
    line = self._file.readline(_MOST)
    if not line:
      return None
    message = json.loads(line)
    if not isinstance(message, dict):
      raise ValueError('not a message')
    return message


def leave():
  """Ends the membership of a process that has done its work."""
  if _group is not None:
    _group.finish()
