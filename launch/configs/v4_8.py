"""Four chips of v4, one host."""

from t5x_lite.launch import jobs


def get_config():
  return jobs.spec(
    accelerator='v4-8',
    recipe='t5/1_1_base',
    zone='us-central2-b',
  )
