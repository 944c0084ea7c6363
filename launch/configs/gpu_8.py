"""One node of eight GPUs."""

from t5x_lite.launch import jobs


def get_config():
  return jobs.spec(
    accelerator='gpu-8',
    recipe='t5/1_1_large',
  )
