"""What is asked of `gcloud` for jobs on TPU VMs, and what it answers."""

import json
import shutil
import subprocess

import pytest

from t5x_lite.launch import calls
from t5x_lite.launch import gcloud
from t5x_lite.launch import jobs
from tests import fake_cloud


def created(**changes):
  made = fake_cloud.spec(**changes)
  return gcloud.create('job', made, jobs.accelerator(made))


def test_one_slice_is_asked_for():
  assert created(capacity='spot') == [
    *('gcloud', 'compute', 'tpus', 'queued-resources', 'create', 'job'),
    *('--zone=us-west4-a', '--quiet', '--accelerator-type=v5litepod-16'),
    *('--runtime-version=v2-alpha-tpuv5-lite', '--node-id=job', '--spot'),
    *('--valid-until-duration=24h', '--async'),
  ]


def test_slices_are_asked_for_together():
  made = created(slices=2, capacity='reserved', project='mine')
  assert {'--node-count=2', '--node-prefix=job', '--reserved'} < set(made)
  assert '--project=mine' in made and '--spot' not in made
  two = fake_cloud.spec(slices=2)
  assert gcloud.nodes('job', two, jobs.accelerator(two)) == ['job-0', 'job-1']


def test_networks_and_accounts_are_passed_on():
  made = created(
    tpu_vm={
      'service_account': 'me@mine.iam.gserviceaccount.com',
      'network': 'n',
      'subnetwork': 's',
      'internal_ips': True,
      'runtime': 'r',
      'wait': 3,
    }
  )
  assert set(made) > {
    '--service-account=me@mine.iam.gserviceaccount.com',
    '--network=n',
    '--subnetwork=s',
    '--internal-ips',
    '--runtime-version=r',
    '--valid-until-duration=3h',
  }
  inside = fake_cloud.spec(tpu_vm={'internal_ips': True})
  assert '--internal-ip' in gcloud.ssh('n', 0, inside, 'job', 'status')


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which('gcloud'), reason='needs gcloud itself')
def test_the_real_gcloud_knows_all_flags(tmp_path, monkeypatch):
  monkeypatch.setenv('CLOUDSDK_CONFIG', str(tmp_path))
  monkeypatch.setenv('CLOUDSDK_CORE_DISABLE_USAGE_REPORTING', '1')
  vm = {'network': 'n', 'subnetwork': 's', 'service_account': 'a@b'}
  made = fake_cloud.spec(project='p', tpu_vm=vm | {'internal_ips': True})
  made_of = [
    created(capacity=capacity, slices=slices, tpu_vm=vm)
    for capacity in jobs.CAPACITIES
    for slices in (1, 2)
  ] + [
    gcloud.describe('j', made),
    gcloud.delete('j', made),
    gcloud.describe_node('j', made),
    gcloud.ssh('j', 3, made, 'j', 'start', rank=3),
    gcloud.scp('/a/b', 'j', 3, made),
    gcloud.fetch('j', 'j', made, '/a/b'),
    ['gcloud', 'compute', 'tpus', 'tpu-vm', 'ssh', 'j', '--worcker=0'],
  ]
  file = tmp_path / 'commands.json'
  file.write_text(
    json.dumps([{'command_string': calls.shown(argv)} for argv in made_of])
  )
  done = subprocess.run(
    ['gcloud', 'meta', 'lint-gcloud-commands', f'--commands-file={file}'],
    capture_output=True,
    text=True,
  )
  *ours, wrong = json.loads(done.stdout)
  assert [
    entry['error_message'] for entry in ours if not entry['success']
  ] == []
  assert len(ours) == 12 and not wrong['success']


@pytest.mark.parametrize(
  'said, what',
  [
    (
      'ERROR: (gcloud.compute.tpus.queued-resources.create) You do not'
      ' currently have an active account selected.',
      'gcloud is not logged in',
    ),
    (
      'Failed to find attribute [project]. The attribute can be set in the'
      ' following ways: - set the property `core/project`',
      'gcloud has no project',
    ),
    (
      'PERMISSION_DENIED: Cloud TPU API has not been used in project 7 before'
      ' or it is disabled.',
      'the Cloud TPU API of the project is not enabled',
    ),
    (
      "RESOURCE_EXHAUSTED: Quota limit 'TPUV5sPreemptibleLitepodPerProject"
      "PerZoneForTPUAPI' has been exceeded. Limit: 16 in zone us-west4-a.",
      'the quota of the project is used up, or none was granted',
    ),
    (
      "Quota exceeded for quota metric 'Requests' and limit 'Requests per"
      " minute' of service 'tpu.googleapis.com'",
      'too many calls of the Cloud TPU API',
    ),
    (
      'There is no more capacity in the zone "us-west4-a"; you can try in'
      ' another zone',
      'the zone has no such TPUs free',
    ),
    (
      "PERMISSION_DENIED: Permission denied on 'locations/us-west9-z' (or it"
      ' may not exist).',
      'there is no such zone for TPUs, or not for this project',
    ),
    (
      'INVALID_ARGUMENT: Accelerator type v5litepod-256 is not available in'
      ' zone us-central2-b',
      'the zone does not have this kind or size of TPU',
    ),
    (
      "PERMISSION_DENIED: Permission 'tpu.queuedResources.create' denied on"
      " 'projects/mine/locations/us-west4-a'",
      'your account may not do this in the project',
    ),
    (
      'WARNING: Your active project does not match the quota project in your'
      ' local Application Default Credentials file. This might result in'
      " unexpected quota issues.\nPERMISSION_DENIED: Permission 'tpu.nodes.get'"
      " denied on 'projects/mine/locations/us-west4-a/nodes/x'",
      'your account may not do this in the project',
    ),
    (
      "Could not fetch resource: - Required 'compute.projects.get' permission"
      " for 'projects/mine'",
      'your account may not do in Compute Engine what ssh needs',
    ),
    (
      'PERMISSION_DENIED: Compute Engine API has not been used in project 7'
      ' before or it is disabled.',
      'the Compute Engine API of the project is not enabled',
    ),
    (
      'INTERNAL: Internal error encountered.',
      'Google Cloud failed for a moment',
    ),
    (
      "You do not have permission to act as service account: 'x'",
      'the service account cannot be used',
    ),
    (
      'Unable to find the server at tpu.googleapis.com',
      'Google Cloud is not reached',
    ),
  ],
)
def test_what_the_api_says_is_told_in_our_words(said, what):
  error = calls.failed(['gcloud'], 1, said, gcloud.API_FAULTS)
  assert error.what == what and said.split('\n')[-1][:20] in str(error)
  assert error.fault.fix or error.fault.passes


def test_internal_addresses_are_no_failure_of_google_cloud():
  said = 'INVALID_ARGUMENT: internal IPs need Private Google Access'
  error = calls.failed(['gcloud'], 1, said, gcloud.API_FAULTS)
  assert error.fault is None and not error.passes


@pytest.mark.parametrize(
  'text',
  ['', '[]', '{}', 'null', '3', '"ACTIVE"', '<html>', '{"state": null}']
  + ['{"state": {}}', '{"state": {"state": []}}', '{"state": ["READY"]}']
  + ['{"state": "READY", "networkEndpoints": [{}]}']
  + ['{"state": "READY", "networkEndpoints": 3}'],
)
def test_an_answer_that_is_not_understood(monkeypatch, text):
  monkeypatch.setattr(calls, 'run', lambda *_, **__: text)
  with pytest.raises(
    calls.CallError, match='answer of gcloud .* is not understood'
  ) as e:
    gcloud.ask(gcloud.describe_node('n', fake_cloud.spec()))
  assert f'got {repr(text) if text else "nothing"}' in str(e.value)


def test_a_stream_gives_lines_and_then_the_fault():
  stream = calls.Stream(
    ['sh', '-c', 'echo a; printf b; echo "[255]" >&2; exit 255'],
    silence=20,
    faults=gcloud.SSH_FAULTS,
  )
  lines = iter(stream)
  assert [next(lines), next(lines)] == ['a', 'b']
  with pytest.raises(calls.CallError, match='not reached by ssh'):
    next(lines)
  stream.close()


def test_a_stream_that_is_silent_is_given_up():
  stream = calls.Stream(['sleep', '60'], silence=0.1)
  with pytest.raises(calls.CallError, match='sleep was silent for 0.1 s'):
    list(stream)
  stream.close()
