"""Packages t5x_lite, with its recipes and corpora from beside the package."""

import pathlib
import re

import setuptools

ROOT = pathlib.Path(__file__).parent
INIT = (ROOT / 't5x_lite' / '__init__.py').read_text(encoding='utf-8')
README = ROOT / 'README.md'
BESIDE = {
  't5x_lite.tasks': 'tasks',
  't5x_lite.launch': 'launch',
  't5x_lite.gin': 'gin',
}
JAX = '>=0.10.2,<0.13'
GCS = ['gcsfs>=2026.9']
TASKS = [  # what built-in tasks are read by, and their metrics computed with
  'pysword>=0.2.8,<0.3',
  'rdata>=1.1,<2',
  'rouge-score>=0.1.2,<0.2',
  'sacrebleu>=2.6,<3',
  'scikit-learn>=1.9,<2',
  'scipy>=1.17,<2',
]

setuptools.setup(
  name='t5x_lite',
  version=re.search(r"^__version__ = '(.+)'$", INIT, re.M)[1],
  description='Pretrains text Transformers with JAX',
  long_description=README.read_text(encoding='utf-8'),
  long_description_content_type='text/markdown',
  license='Apache-2.0',
  python_requires='>=3.11',
  packages=setuptools.find_packages(include=['t5x_lite', 't5x_lite.*'])
  + sorted(BESIDE)
  + ['t5x_lite.launch.configs', 't5x_lite.tasks.readers'],
  package_dir=BESIDE,
  package_data={
    't5x_lite': ['prices.json'],
    't5x_lite.gin': ['README.md', '**/*.gin'],
  },
  entry_points={'console_scripts': ['t5x_lite = t5x_lite.cli:main']},
  install_requires=[
    # From the oldest release that the tests ran with to the next that may
    # break; constraints/ has exact pins.
    f'jax{JAX}',
    'flax>=0.12.8,<0.13',
    'optax>=0.2.8,<0.3',
    'orbax-checkpoint>=0.12.8,<0.13',
    'numpy>=2.4,<3',
    'ml_dtypes>=0.5,<1',
    'msgpack>=1.1,<2',
    'tensorstore>=0.1.84,<0.2',
    'gin-config>=0.5,<0.6',
    'ml_collections>=1.1,<2',
    'seqio>=0.0.20,<0.1',
    'tensorflow-datasets>=4.9.10,<5',
    'importlib_resources>=6.5',  # it prepares datasets with this, undeclared
    'sentencepiece>=0.2.3,<0.3',
    'tokenizers>=0.22.2,<0.24',
    'protobuf>=7.36,<8',
    'array_record>=0.8.6,<0.9',
    'grain>=0.2.18,<0.3',
    'etils[epath]>=1.15,<2',
    'fsspec>=2026.9',
    'google-crc32c>=1.8,<2',
    'pyarrow>=25,<27',
    'rich>=15,<16',
    'tensorboardX>=2.6.5,<3',
    'matplotlib>=3.11,<4',
  ],
  extras_require={
    'gcs': GCS,
    'tasks': TASKS,
    'wandb': ['wandb>=0.27,<1'],
    'tpu': [f'jax[tpu]{JAX}'],  # brings the libtpu that this jax asks for
    'gpu': [f'jax[cuda12]{JAX}'],
    'test': [
      'pytest>=9.2,<10',
      'pytest-xdist>=3.8,<4',
      'ruff>=0.17,<0.18',
      'safetensors>=0.7,<1',
      *GCS,
      *TASKS,
      'gcp-storage-emulator>=2026.7.19',
    ],
    'oracle': ['timm==1.0.31', 'torch==2.13.0', 'transformers==4.57.6'],
  },
)
