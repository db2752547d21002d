"""Small networks by name, more of them by entry points; and fine-tuning from a checkpoint."""

from privet.models.fine_tuning import Loaded as Loaded, freeze as freeze, from_checkpoint as from_checkpoint
from privet.models.networks import (
    model as model,
    output_width as output_width,
    register as register,
    registry as registry,
)
