"""64 chips of v6e on 16 hosts."""

from t5x_lite.launch import jobs


def get_config():
  return jobs.spec(
    accelerator='v6e-64',
    recipe='t5/1_1_large',
    zone='us-east5-b',
    capacity='spot',
  )
