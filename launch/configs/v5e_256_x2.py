"""Two pods of v5e, joined by the data-centre network."""

from t5x_lite.launch import jobs


def get_config():
  return jobs.spec(
    accelerator='v5e-256',
    slices=2,
    recipe='t5/1_1_xxl',
    zone='us-west4-a',
    capacity='reserved',
  )
