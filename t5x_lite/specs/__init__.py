"""Every choice that a recipe can make. Standard library only."""

from t5x_lite.specs.data import IMPORTED
from t5x_lite.specs.data import Concat
from t5x_lite.specs.data import Data
from t5x_lite.specs.data import Isolated
from t5x_lite.specs.data import Mixture
from t5x_lite.specs.decoding import Beam
from t5x_lite.specs.decoding import Greedy
from t5x_lite.specs.decoding import Sample
from t5x_lite.specs.model import Alibi
from t5x_lite.specs.model import FanIn
from t5x_lite.specs.model import Glorot
from t5x_lite.specs.model import LayerNorm
from t5x_lite.specs.model import Learned
from t5x_lite.specs.model import Normal
from t5x_lite.specs.model import RMSNorm
from t5x_lite.specs.model import Rope
from t5x_lite.specs.model import Sinusoid
from t5x_lite.specs.model import T5Bias
from t5x_lite.specs.model import Transformer
from t5x_lite.specs.objectives import CausalLM
from t5x_lite.specs.objectives import Classification
from t5x_lite.specs.objectives import Denoiser
from t5x_lite.specs.objectives import Denoisers
from t5x_lite.specs.objectives import PrefixLM
from t5x_lite.specs.objectives import SpanCorruption
from t5x_lite.specs.objectives import Supervised
from t5x_lite.specs.optimizers import Adafactor
from t5x_lite.specs.optimizers import AdamW
from t5x_lite.specs.optimizers import Group
from t5x_lite.specs.optimizers import Lamb
from t5x_lite.specs.optimizers import Schedule
from t5x_lite.specs.optimizers import Sgd
from t5x_lite.specs.rules import Spec
from t5x_lite.specs.rules import alternatives
from t5x_lite.specs.rules import check_missing
from t5x_lite.specs.rules import describe
from t5x_lite.specs.rules import obeys
from t5x_lite.specs.rules import takes_spec
from t5x_lite.specs.rules import takes_specs
from t5x_lite.specs.run import Best
from t5x_lite.specs.run import Checkpoints
from t5x_lite.specs.run import Evaluation
from t5x_lite.specs.run import Mesh
from t5x_lite.specs.run import Pretrained
from t5x_lite.specs.run import Run

SPECS = {
  cls.__name__: cls
  for cls in (
    Run,
    Transformer,
    T5Bias,
    Learned,
    Sinusoid,
    Rope,
    Alibi,
    RMSNorm,
    LayerNorm,
    FanIn,
    Normal,
    Glorot,
    CausalLM,
    PrefixLM,
    SpanCorruption,
    Denoisers,
    Denoiser,
    Supervised,
    Classification,
    Data,
    Mixture,
    Concat,
    Isolated,
    Adafactor,
    AdamW,
    Lamb,
    Sgd,
    Schedule,
    Group,
    Mesh,
    Evaluation,
    Greedy,
    Beam,
    Sample,
    Best,
    Checkpoints,
    Pretrained,
  )
}
