"""Which kernel computes an attention, and why."""

import collections
import dataclasses
import math

import jax

from t5x_lite import errors
from t5x_lite import partitioning
from t5x_lite import specs
from t5x_lite.nn.kernels import blocks

LONG = 512  # keys from which on a fused kernel is taken
SLOW = 1024  # queries and keys from which on plain is the slower on CPUs
LARGE = 2**31  # bytes a device of weights, kept for backward, that are too many
DRAWN = 2**27  # bytes a device of a layer's random bits, on TPUs
FUSED = {'tpu': 'splash', 'gpu': 'cudnn'}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Site:
  """What a choice depends on besides the model.

  Attributes:
    rows: of the batch, over all devices.
    queries: of each row.
    keys: of each row.
    biased: whether something is added to the logits.
    prefix: whether some tokens see others both ways in a causal mask.
    dropout: whether weights are dropped.
    first: whether the first query is the first key.
    causal: whether rows attend to themselves, each query to nothing behind it.
  """

  rows: int
  queries: int
  keys: int
  biased: bool = False
  prefix: bool = False
  dropout: bool = False
  first: bool = True
  causal: bool = False

  @classmethod
  def of(cls, q_BQHD, mask, bias, dropout):
    return cls(
      rows=q_BQHD.shape[0],
      queries=mask.shape[0],
      keys=mask.shape[1],
      biased=bias is not None,
      prefix=mask.prefix is not None,
      dropout=dropout is not None,
      first=isinstance(mask.first, int) and mask.first == 0,
      causal=blocks.may_skip(mask),
    )


@dataclasses.dataclass(frozen=True)
class Place:
  """The devices: their platform, and how often they share out each axis."""

  platform: str
  shares: dict  # of the mesh's axes


@dataclasses.dataclass(frozen=True)
class Choice:
  """A name in KERNELS, and the reason."""

  kernel: str
  why: str


def place_here():
  """Where what is traced now will run."""
  mesh = jax.sharding.get_abstract_mesh()
  return Place(partitioning.platform(), dict(mesh.shape))


def place_of(mesh):
  return Place(mesh.devices.flat[0].platform, dict(mesh.shape))


def choose(spec, site, place):
  """The kernel for an attention.

  What a spec asks for, where it can be; a step of decoding is always plain. On
  its own: the platform's fused kernel where it can express what is asked and
  there are LONG keys; else the plain one, unless its weights take more than
  LARGE, or it is SLOW, or more than DRAWN is drawn for them at once, of which
  XLA then has some two dozen arrays; then the chunked one. CPUs take the plain
  one by blocks where a causal mask hides whole blocks of keys.

  Args:
    spec: specs.Transformer.
    site: Site.
    place: Place.
  """
  if site.queries == 1:
    return Choice('plain', 'one query')
  if place.platform == partitioning.ANY:
    # Sizes are not known yet: there are no blocks to cut them into.
    return Choice('plain', 'for every platform and length')
  if spec.attention in ('plain', 'chunked'):
    return Choice(spec.attention, 'as Transformer.attention says')
  obstacle = unfused(spec, site, place)
  if not obstacle and spec.attention == 'fused':
    return Choice(FUSED[place.platform], 'as Transformer.attention says')
  if not obstacle and site.keys >= LONG:
    return Choice(FUSED[place.platform], f'{LONG} keys or more')
  size = weights_size(spec, site, place.shares)
  plain = f'plain would keep {size / 2**30:,.2f} GiB a device'
  if size > LARGE:
    return Choice('chunked', f'{plain}; {obstacle}')
  drawn = site.dropout and spec.dropout_kind == 'token'
  if place.platform == 'tpu' and drawn:
    layer = dataclasses.replace(spec, remat='full')
    size = weights_size(layer, site, place.shares)
    if size > DRAWN:
      bits = f'{size / 2**20:,.0f} MiB of random bits a layer'
      return Choice('chunked', f'{bits} for dropout; {obstacle}')
  if place.platform == 'cpu':
    if min(site.queries, site.keys) >= SLOW:
      return Choice('chunked', f'faster on CPUs from {SLOW} tokens on')
    whole = place.shares.get('sequence', 1) == 1
    if site.causal and whole and site.queries > blocks.BLOCK:
      return Choice('blocks', 'on CPUs, most of what is hidden is left out')
  return Choice('plain', f'{plain}; {obstacle or f"under {LONG} keys"}')


def unfused(spec, site, place):
  """Why the platform's fused kernel can't be taken, or None."""
  if place.platform not in FUSED:
    return f'{place.platform} has no fused kernel'
  name = FUSED[place.platform]
  tensor = place.shares.get('tensor', 1)
  groups = spec.num_kv_heads or spec.num_heads
  dtypes = {'splash': ('float32', 'bfloat16'), 'cudnn': ('bfloat16',)}[name]
  width = {'splash': 64, 'cudnn': 8}[name]
  # Mosaic can't compile more precise products of bfloat16 than there are.
  sharper = jax.config.jax_default_matmul_precision
  if spec.dtype != 'bfloat16' or sharper in ('default', 'fastest', 'bfloat16'):
    sharper = None
  obstacles = [
    (sharper and name == 'splash', f'takes no products of {sharper} precision'),
    (site.biased, f'has no bias, as {type(spec.position).__name__} needs'),
    (site.dropout, 'has no dropout of weights'),
    (site.prefix and name == 'splash', 'has no prefix'),
    (not site.first, 'needs queries from the first on'),
    (spec.dtype not in dtypes, f'is for {" and ".join(dtypes)}'),
    (spec.head_dim % width, f'needs a head_dim that {width} divides'),
    (spec.head_dim > 256, 'needs a head_dim of 256 at most'),
    (place.shares.get('sequence', 1) > 1, 'needs whole rows: Mesh.sequence 1'),
    (groups % tensor, 'needs heads of keys that Mesh.tensor divides'),
  ]
  found = [f'{name} {said}' for is_so, said in obstacles if is_so]
  return found[0] if found else None


def weights_size(spec, site, shares):
  """Bytes that plain weights take on a device in a step of training.

  In float32, of all layers, where backward does not compute them again.
  """

  def share(size, *axes):
    count = math.prod(shares.get(axis, 1) for axis in axes)
    return size if size % count else size // count

  kept = spec.encoder_layers + spec.decoder_layers
  return (
    4
    * (kept if spec.remat == 'none' else 1)
    * share(site.rows, *partitioning.RULES['batch'])
    * share(spec.num_heads, *partitioning.RULES['heads'])
    * share(site.queries, *partitioning.RULES['length'])
    * site.keys
  )


def sites(spec, rows, lengths):
  """The attentions of a model in training, by name.

  Args:
    spec: specs.Transformer.
    rows: of a batch, or of a microbatch.
    lengths: tokens of a row of each stack, 'encoder' and 'decoder'.
  """
  found = {}
  for name, n in lengths.items():
    found[name] = Site(
      rows=rows,
      queries=n,
      keys=n,
      biased=isinstance(spec.position, (specs.T5Bias, specs.Alibi)),
      prefix=name == 'decoder' and spec.mask == 'prefix',
      causal=name == 'decoder' and spec.mask == 'causal',
      dropout=spec.dropout > 0,
    )
  if len(found) == 2:
    found['cross'] = dataclasses.replace(
      found['decoder'], keys=lengths['encoder'], biased=False, causal=False
    )
  return found


def check(spec, mesh):
  """Refuses a fused kernel for what it can't express."""
  if spec.attention != 'fused':
    return
  layers = {'encoder': spec.encoder_layers, 'decoder': spec.decoder_layers}
  lengths = {name: LONG for name, count in layers.items() if count}
  for name, site in sites(spec, 1, lengths).items():
    obstacle = unfused(spec, site, place_of(mesh))
    if obstacle:
      raise errors.ConfigError(
        "Transformer.attention 'fused' can't be had here",
        got=f'{name}: {obstacle}',
        fix="take 'auto', which says what it chose, or 'chunked'",
      )


def describe(spec, mesh, rows, lengths):
  """A line that says what computes each attention of a run, and why.

  Args:
    spec: and `rows` and `lengths`, as of `sites`.
    mesh: the mesh.
    rows: see `spec`.
    lengths: see `spec`.
  """
  chosen = collections.defaultdict(list)
  for name, site in sites(spec, rows, lengths).items():
    chosen[choose(spec, site, place_of(mesh))].append(name)
  return 'attention: ' + '; '.join(
    f'{", ".join(names)} {choice.kernel} ({choice.why})'
    for choice, names in chosen.items()
  )
