"""Several processes on this machine, each with CPU devices of its own.

It is how a run of many hosts is tried without them: the processes find each
other, read their parts of the data and save together as they would there.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

_GRACE = 15  # seconds that the others have to end after one has failed
_CHATTER = re.compile(r'\[Gloo\] Rank \d+ is connected')


def _free_port():
  with socket.create_server(('127.0.0.1', 0)) as server:
    return server.getsockname()[1]


def _environment(devices):
  flags = os.environ.get('XLA_FLAGS', '').split()
  kept = [f for f in flags if 'host_platform_device_count' not in f]
  changes = {
    'JAX_PLATFORMS': 'cpu',
    'JAX_NUM_CPU_DEVICES': str(devices),
    'PYTHONUNBUFFERED': '1',
  }
  if kept:
    changes['XLA_FLAGS'] = ' '.join(kept)
  return {k: v for k, v in os.environ.items() if k != 'XLA_FLAGS'} | changes


def _relay(pipe, prefix, faults):
  """Prints each line of a process with its rank before it.

  Where our own output fails, the pipe is closed, and so fails theirs: else they
  would wait for ever until someone reads it.
  """
  with pipe:
    try:
      for line in pipe:
        if not _CHATTER.match(line):
          sys.stdout.write(f'{prefix}{line}')
          sys.stdout.flush()
    except OSError as e:
      faults.append(e)


def run(command, processes, devices):
  """Runs a command of t5x_lite in several processes, and ends them together.

  Args:
    command: a list: the command and its options.
    processes: how many.
    devices: CPU devices of each.

  Returns:
    The exit code of the process that failed first, or 0.

  Raises:
    OSError: what they print can't be written.
  """
  address = f'127.0.0.1:{_free_port()}'
  running, relays, faults = {}, [], []

  def forward(number, _):
    for process in running.values():
      process.send_signal(number)

  # Before any is started: else a signal could end us, and leave them behind.
  old = {s: signal.signal(s, forward) for s in (signal.SIGINT, signal.SIGTERM)}
  try:
    for index in range(processes):
      place = {
        'coordinator_address': address,
        'process_count': processes,
        'process_index': index,
      }
      running[index] = process = subprocess.Popen(
        [sys.executable, '-m', 't5x_lite', *command]
        + [f'--{name}={value}' for name, value in place.items()],
        env=_environment(devices),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding='utf-8',
        errors='replace',
        start_new_session=True,  # Ctrl-C reaches them through us alone
      )
      relays.append(
        threading.Thread(
          target=_relay,
          args=[process.stdout, f'[{index}] ', faults],
          daemon=True,
        )
      )
      relays[-1].start()
    code = _wait(running)
  finally:
    for process in running.values():
      process.kill()
    for number, handler in old.items():
      signal.signal(number, handler)
    for relay in relays:
      relay.join(timeout=5)
  if faults:
    raise faults[0]
  return code


def _wait(running):
  """Waits for all, or kills what is left some time after one has failed."""
  code, deadline = 0, float('inf')
  while running and time.monotonic() < deadline:
    for index, process in list(running.items()):
      if process.poll() is None:
        continue
      del running[index]
      ended = process.returncode
      if ended and not code:
        code = 128 - ended if ended < 0 else ended
        deadline = time.monotonic() + _GRACE
        if ended < 0:
          name = signal.Signals(-ended).name
          print(f't5x_lite: process {index} died of {name}', file=sys.stderr)
    time.sleep(0.05)
  for index in running:
    print(f't5x_lite: process {index} is killed', file=sys.stderr)
  return code
