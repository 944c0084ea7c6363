"""256 chips of v5p (512 cores) on 64 hosts."""

from t5x_lite.launch import jobs


def get_config():
  return jobs.spec(
    accelerator='v5p-512',
    recipe='t5/1_1_xxl',
    zone='us-east5-a',
    capacity='reserved',
  )
