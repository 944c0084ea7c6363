"""Multi-head attention."""

import math

from flax import nnx
import jax
import jax.numpy as jnp

from t5x_lite import partitioning
from t5x_lite.nn import modules

HIDDEN = -1e10  # the logit of a key that may not be seen


def attend(q_BQHD, k_BKHD, v_BKHD, mask_BQK, bias_HQK, dropout):
  """softmax(q k + bias) v over the keys that the mask shows.

  The logits are not divided by sqrt(D): T5's initial queries are.
  Logits and softmax are at least float32.

  Args:
    q_BQHD: queries.
    k_BKHD: keys.
    v_BKHD: values.
    mask_BQK: true where a query sees a key.
    bias_HQK: added to the logits, or None.
    dropout: applied to the weights [B, H, Q, K].
  """
  wide = modules.at_least_float32(q_BQHD.dtype)
  logits = modules.einsum('BQHD,BKHD->BHQK', q_BQHD, k_BKHD, wide)
  if bias_HQK is not None:
    logits = logits + bias_HQK[None].astype(wide)
  logits = jnp.where(mask_BQK[:, None], logits, HIDDEN)
  weights = dropout(jax.nn.softmax(logits).astype(v_BKHD.dtype))
  return modules.einsum('BHQK,BKHD->BQHD', weights, v_BKHD)


class Attention(nnx.Module):
  """Queries from one sequence, keys and values from another or the same."""

  def __init__(self, rngs, spec):
    self.spec = spec
    e, h, d = spec.embed_dim, spec.num_heads, spec.head_dim

    def project(std):
      return modules.Dense(
        rngs,
        'BLE,EHD->BLHD',
        (e, h, d),
        ('embed', 'heads', 'kv'),
        modules.normal(std),
      )

    self.query = project(1 / math.sqrt(e * d))
    self.key = project(1 / math.sqrt(e))
    self.value = project(1 / math.sqrt(e))
    self.out = modules.Dense(
      rngs,
      'BLHD,HDE->BLE',
      (h, d, e),
      ('heads', 'kv', 'embed'),
      modules.normal(1 / math.sqrt(h * d)),
    )

  def keys_values(self, y_BKE):
    heads = 'batch', 'length', 'heads', 'kv'
    return (
      partitioning.constrain(self.key(y_BKE), heads),
      partitioning.constrain(self.value(y_BKE), heads),
    )

  def __call__(self, x_BQE, keys_values, mask_BQK, bias_HQK, keys_B):
    q_BQHD = partitioning.constrain(
      self.query(x_BQE), ('batch', 'length', 'heads', 'kv')
    )
    dropout = lambda w: modules.dropout(w, self.spec.dropout, keys_B, site=0)
    y_BQHD = attend(q_BQHD, *keys_values, mask_BQK, bias_HQK, dropout)
    return self.out(y_BQHD)
