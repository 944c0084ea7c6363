"""Every choice that a recipe can make. Standard library only."""

from t5x_lite.specs.data import Data
from t5x_lite.specs.decoding import Beam
from t5x_lite.specs.decoding import Greedy
from t5x_lite.specs.decoding import Sample
from t5x_lite.specs.model import T5Bias
from t5x_lite.specs.model import Transformer
from t5x_lite.specs.objectives import SpanCorruption
from t5x_lite.specs.optimizers import Adafactor
from t5x_lite.specs.optimizers import Schedule
from t5x_lite.specs.rules import Spec
from t5x_lite.specs.rules import alternatives
from t5x_lite.specs.rules import check_missing
from t5x_lite.specs.rules import describe
from t5x_lite.specs.rules import obeys
from t5x_lite.specs.run import Best
from t5x_lite.specs.run import Checkpoints
from t5x_lite.specs.run import Evaluation
from t5x_lite.specs.run import Mesh
from t5x_lite.specs.run import Run

SPECS = {
  cls.__name__: cls
  for cls in (
    Run,
    Transformer,
    T5Bias,
    SpanCorruption,
    Data,
    Adafactor,
    Schedule,
    Mesh,
    Evaluation,
    Greedy,
    Beam,
    Sample,
    Best,
    Checkpoints,
  )
}
