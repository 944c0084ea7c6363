"""A whole pod of v5e, 256 chips on 64 hosts."""

from t5x_lite.launch import jobs


def get_config():
  return jobs.spec(
    accelerator='v5e-256',
    recipe='t5/1_1_xl',
    zone='us-west4-a',
    capacity='spot',
  )
