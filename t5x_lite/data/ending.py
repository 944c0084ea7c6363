"""The documents of a split with a token behind each, read at any place.

The store holds them with nothing between. A token of document d stands here d
places later; which document a place lies in is found by bisection.
"""

import numpy as np


class Starts:
  """Finds the document that a place of the ended text lies in."""

  def __init__(self, documents):
    """Takes the store's array of where each document starts."""
    self._documents, self._block = documents, documents.block
    blocks = -(-len(documents) // self._block)
    # The first place of each block of documents and one, when it was needed;
    # zeros take no memory until then.
    self._first = np.zeros(blocks, np.int64)

  def _first_of(self, blocks_B):
    unknown = np.unique(blocks_B[self._first[blocks_B] == 0])
    if len(unknown):
      begin = unknown * self._block
      self._first[unknown] = self._documents.read(begin, 1)[:, 0] + begin + 1
    return self._first[blocks_B] - 1

  def find(self, places_B):
    """The last document that starts at or before each place, int [B]."""
    low_B = np.zeros(len(places_B), int)
    high_B = np.full(len(places_B), len(self._first))  # starts beyond
    while (high_B - low_B > 1).any():
      middle_B = (low_B + high_B) // 2
      reached_B = self._first_of(middle_B) <= places_B
      low_B = np.where(reached_B, middle_B, low_B)
      high_B = np.where(reached_B, high_B, middle_B)
    # Those blocks in a row are sorted, as the whole is.
    blocks_U = np.unique(low_B)
    begin_U = blocks_U * self._block
    number_UJ = begin_U[:, None] + np.arange(self._block)
    first_UJ = self._documents.read(begin_U, self._block) + number_UJ
    first_N = first_UJ[number_UJ < len(self._documents)]
    at_B = np.searchsorted(first_N, places_B, side='right') - 1
    return number_UJ.ravel()[at_B]


class Ended:
  """Tokens of a split, with a token behind each document.

  Attributes:
    num_tokens: how many, the ends included.
    num_documents: of how many documents.
  """

  def __init__(self, tokens, end_id):
    """Takes the store's Tokens and what stands behind each document."""
    self._tokens, self._end_id = tokens, end_id
    self.num_documents = tokens.num_documents
    self.num_tokens = tokens.num_tokens + tokens.num_documents
    self._starts = Starts(tokens.arrays['documents'])

  def _next(self, document_B, count):
    """Numbers of the documents behind these, and where the store has them.

    What is behind the last one is where it ends, and then nowhere.
    """
    next_BJ = document_B[:, None] + 1 + np.arange(count)
    after_BJ = self._tokens.arrays['documents'].read(next_BJ[:, 0], count)
    after_BJ[next_BJ == self.num_documents] = self._tokens.num_tokens
    after_BJ[next_BJ > self.num_documents] = np.iinfo(np.int64).max // 2
    return next_BJ, after_BJ

  def rows(self, starts_B, length):
    """Stretches of tokens, int32 [B, length], zero past the end."""
    starts_B = np.asarray(starts_B)
    document_B = self._starts.find(starts_B)
    # As many documents as a row is likely to touch, or more where it has more.
    most = 2 + 2 * length * self.num_documents // self.num_tokens
    next_BJ, after_BJ = self._next(document_B, most)
    while (after_BJ[:, -1] + next_BJ[:, -1] <= starts_B + length).any():
      most *= 2
      next_BJ, after_BJ = self._next(document_B, most)
    # Document d + 1 starts one place behind the end of document d.
    ends_BJ = after_BJ + next_BJ - 1 - starts_B[:, None]
    row_J, end_J = np.nonzero(ends_BJ < length)
    is_end_BL = np.zeros((len(starts_B), length), bool)
    is_end_BL[row_J, ends_BJ[row_J, end_J]] = True
    text_BL = self._tokens.rows(starts_B - document_B, length)
    count_B = length - is_end_BL.sum(axis=1)
    out_BL = np.full((len(starts_B), length), self._end_id, np.int32)
    out_BL[~is_end_BL] = text_BL[np.arange(length) < count_B[:, None]]
    return out_BL
