"""Small networks by name, more of them by entry points; and fine-tuning from a checkpoint."""

from privet.models.fine_tuning import Loaded as Loaded
from privet.models.fine_tuning import freeze as freeze
from privet.models.fine_tuning import from_checkpoint as from_checkpoint
from privet.models.networks import model as model
from privet.models.networks import output_width as output_width
from privet.models.networks import register as register
from privet.models.networks import registry as registry
