"""The built-in text-to-text tasks and mixtures, by name.

To import this loads no library: a Definition is made when it is asked for.

DEFINITIONS: {name: function () -> data.definitions.Definition}.
MIXTURES: {name: {name of a task or mixture: its rate, or None for its number of
examples to train on}}; what has a rate of 0 is for evaluation alone.
"""

from t5x_lite.tasks import offline
from t5x_lite.tasks import t5

DEFINITIONS = t5.DEFINITIONS | offline.DEFINITIONS
MIXTURES = t5.MIXTURES | offline.MIXTURES
