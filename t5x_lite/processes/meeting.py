"""How the processes of a run find each other, and what they compare."""

import dataclasses
import ipaddress
import json
import os
import socket
import time

from t5x_lite import errors
from t5x_lite.processes import peer as peers

_SOME = 4  # of many, as many are named


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
  def listens_at(self):
    """The address at which process 0 listens: this one, and no other.

    Some systems give a machine's own name to the loopback interface, where no
    other machine could call: then it is every interface.
    """
    given = os.environ.get('JAX_COORDINATOR_BIND_ADDRESS')
    if given:
      return given
    host, port = split(self.address)
    try:
      found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
      return self.address  # to be told when it can't listen there
    numbers = {entry[4][0] for entry in found}
    loops = all(ipaddress.ip_address(n).is_loopback for n in numbers)
    if loops and host != 'localhost' and host not in numbers:
      return f'0.0.0.0:{port}'
    return self.address


def split(address):
  """(host, port) of `host:port` or `[host]:port`."""
  host, _, port = address.rpartition(':')
  return host.strip('[]'), int(port)


def group(values):
  """Who has which value of {process: value}: the most frequent one first.

  Returns:
    A list of (value, processes); of two as frequent, that of the first process.
  """
  found = {}
  for n, value in sorted(values.items()):
    key = json.dumps(value, sort_keys=True)
    found.setdefault(key, (value, []))[1].append(n)
  return sorted(found.values(), key=lambda pair: -len(pair[1]))


def named(indices):
  """Some processes, in words: the first few of many."""
  if len(indices) == 1:
    return f'process {indices[0]}'
  some = ', '.join(map(str, indices[:_SOME]))
  more = ', ...' * (len(indices) > _SOME)
  return f'{len(indices)} processes ({some}{more})'


def compare(facts):
  """Raises unless each fact, a dict of process to value, is one value."""
  differ = [name for name in facts if len(group(facts[name])) > 1]
  if not differ:
    return
  (usual, most), *others = group(facts[differ[0]])
  more = ', '.join(differ[1:_SOME]) + ', ...' * (len(differ) > _SOME)
  raise errors.DeviceError(
    f'processes differ in {differ[0]}'
    + (f' and in {len(differ) - 1} more ({more})' if more else ''),
    got=', '.join(f'{_brief(x)} in {named(who)}' for x, who in others),
    expected=f'{_brief(usual)}, as in {named(most)}',
    fix='start all of them by the same command and installation',
  )


def _brief(value):
  text = 'none' if value is None else str(value)
  return text if len(text) <= 100 else f'{text[:100]}...'


def call_roll(place, facts):
  """Process 0: waits for the others, compares, and lets all go on.

  Args:
    place: Place of process 0.
    facts: its own, a dict of names to JSON.

  Returns:
    {index: Peer} of the others.
  """
  host, port = split(place.listens_at)
  family = socket.AF_INET6 if ':' in host else socket.AF_INET
  try:
    server = socket.create_server((host, port), family=family)
  except OSError as e:
    raise errors.DeviceError(
      'process 0 cannot listen',
      where=f'{host}:{port}',
      got=e.strerror or e,
      fix='name this machine and a free port of it by --coordinator_address',
    ) from e
  # Its own as those of the others: out of JSON, where a tuple is a list.
  found, said = {}, {0: json.loads(json.dumps(facts))}
  try:
    with server:
      _answer(server, place, found, said)
    names = dict.fromkeys(name for n in sorted(said) for name in said[n])
    compare({name: {n: said[n].get(name) for n in said} for name in names})
  except errors.UserError as e:
    for peer in found.values():
      peer.send(kind='fault', text=str(e), exit_code=e.exit_code)
      peer.close()
    raise
  for peer in found.values():
    peer.send(kind='go')
  return found


def _answer(server, place, found, said):
  """Takes calls, into `found` and `said`, until all are there."""
  deadline = time.monotonic() + place.timeout
  while len(said) < place.count:
    server.settimeout(max(deadline - time.monotonic(), 0.001))
    try:
      connection, _ = server.accept()
    except TimeoutError:
      if time.monotonic() >= deadline:
        raise _missing(place, said) from None
      continue
    peer = peers.Peer(None, connection)
    connection.settimeout(5)
    try:
      hello = peer.receive()
      peer.index, theirs = hello['index'], hello['facts']
      fits = 0 < peer.index < place.count == hello['count']
    except (OSError, ValueError, LookupError, TypeError):
      peer.close()  # not one of ours
      continue
    if not fits or peer.index in said:
      error = errors.DeviceError(
        f'process {peer.index} of {hello["count"]} calls in',
        where=place.address,
        expected=f'each of 1 to {place.count - 1} once',
        fix='give each process its own --process_index, all the same'
        ' --process_count, and each run its own port',
      )
      peer.send(kind='fault', text=str(error), exit_code=error.exit_code)
      peer.close()
      raise error
    found[peer.index], said[peer.index] = peer, theirs


def _missing(place, said):
  missing = sorted(set(range(place.count)) - said.keys())
  some = ', '.join(map(str, missing[:8])) + ', ...' * (len(missing) > 8)
  return errors.DeviceError(
    f'{len(missing)} of {place.count} processes did not call in within'
    f' {place.timeout:g} s',
    where=place.address,
    got=f'no word of process {some}',
    fix='start each of them, with the same --coordinator_address',
  )


def call_in(place, facts):
  """Other processes: find process 0, and wait for its word.

  Args:
    place: Place of this process.
    facts: its own, a dict of names to JSON.

  Returns:
    {0: Peer}.
  """
  deadline = time.monotonic() + place.timeout
  while True:
    try:
      connection = socket.create_connection(split(place.address), timeout=5)
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
  peer = peers.Peer(0, connection)
  peer.send(kind='hello', index=place.index, count=place.count, facts=facts)
  # It answers when the last one is there; it has the same deadline.
  connection.settimeout(max(deadline - time.monotonic(), 0) + 10)
  try:
    answer = peer.receive()
  except (OSError, ValueError):
    answer = None
  if answer == {'kind': 'go'}:
    return {0: peer}
  peer.close()
  if answer is None:
    raise errors.DeviceError(
      'process 0 hung up',
      where=place.address,
      fix='see what it said; is another program at that port?',
    )
  error = errors.DeviceError(answer['text'])
  error.exit_code = answer['exit_code']
  error.told = True  # process 0 prints it
  raise error
