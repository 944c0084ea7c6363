"""Four chips of v5e, one host."""

from t5x_lite.launch import jobs


def get_config():
  return jobs.spec(
    accelerator='v5e-4',
    recipe='t5/1_1_small',
    zone='us-west4-a',
  )
