"""What GKE does not take of a job spec, told before it is asked."""

import re

from t5x_lite import accelerators
from t5x_lite import errors

_LABEL = re.compile(r'[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?', re.ASCII)


def check_place(job_spec, accelerator):
  """Refuses what no job of GKE can be found by.

  Raises:
    ConfigError: GPUs, a TPU that GKE lacks, a project, or a name that
      Kubernetes does not take.
  """
  where = '--config.accelerator'
  if not accelerator.is_tpu:
    raise errors.ConfigError(
      'launch gke is for TPUs',
      where=where,
      got=accelerator.name,
      fix='launch slurm for GPU nodes',
    )
  if accelerators.KINDS[accelerator.kind].label is None:
    raise errors.ConfigError(
      f'GKE has no {accelerator.kind}',
      where=where,
      got=accelerator.name,
      fix='launch tpu_vm',
    )
  _check_names(job_spec)
  if job_spec.project:
    raise errors.ConfigError(
      'launch gke takes no project',
      where='--config.project',
      got=job_spec.project,
      expected='none: the cluster is in one already',
      fix='--config.gke.context=NAME chooses the cluster',
    )


def check(job_spec, accelerator):
  """Refuses what GKE does not have.

  Raises:
    ConfigError: of `check_place`, slices that GKE does not join, no image, no
      volume, a capacity that is none.
  """
  check_place(job_spec, accelerator)
  if accelerator.slices > 1 and (
    accelerator.hosts == 1 or accelerator.kind == 'v3'
  ):
    raise errors.ConfigError(
      'GKE joins no slices of one host, nor of v3',
      where='--config.accelerator',
      got=str(accelerator),
      expected='one slice, or slices of more than one host',
    )
  if not job_spec.gke.image:
    raise errors.ConfigError(
      'no image that has t5x_lite',
      fix='--config.gke.image=REGION-docker.pkg.dev/PROJECT/REPOSITORY/t5x_lite'
      '; launch/Dockerfile makes one',
    )
  _check_capacity(job_spec)
  folders = job_spec.shared_folders
  full = all(folder.startswith('/') for folder in folders)
  if len(folders) != bool(job_spec.gke.claim) or not full:
    raise errors.ConfigError(
      'a shared folder needs the volume that is mounted there',
      where='--config.shared_folders',
      got=', '.join(folders) or 'none',
      expected='one full path, and --config.gke.claim=NAME, which is a'
      ' PersistentVolumeClaim',
    )


def _check_names(job_spec):
  """Refuses what the cluster would, after the job is half made."""
  for field in ('namespace', 'service_account', 'queue', 'claim'):
    name = job_spec.gke[field]
    where = f'--config.gke.{field}'
    if field == 'namespace' and not name:
      raise errors.ConfigError('no namespace', where=where, expected='default')
    dots = field != 'namespace'
    names = name.split('.') if dots else [name]
    if name and not all(map(_LABEL.fullmatch, names)):
      raise errors.ConfigError(
        'not a name in Kubernetes',
        where=where,
        got=name,
        expected='small letters, digits and - in it' + ', and dots' * dots,
      )


def _check_capacity(job_spec):
  capacity, reservation = job_spec.capacity, job_spec.gke.reservation
  if capacity == 'reserved' and not reservation:
    raise errors.ConfigError(
      'reserved capacity needs a reservation',
      where='--config.capacity',
      got=capacity,
      fix='--config.gke.reservation=NAME, or another capacity',
    )
  if capacity == 'spot' and reservation:
    raise errors.ConfigError(
      'spot capacity is never of a reservation',
      where='--config.gke.reservation',
      got=reservation,
      fix='--config.capacity=reserved, or no reservation',
    )
  if reservation and not _LABEL.fullmatch(reservation):
    raise errors.ConfigError(
      'not a name of a reservation',
      where='--config.gke.reservation',
      got=reservation,
      expected='small letters, digits and - in it',
    )
