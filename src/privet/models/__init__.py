"""The small networks of the papers, by name, one file per kind; and fine-tuning from a checkpoint."""

from privet.models import dense as dense
from privet.models import images as images
from privet.models import ratings as ratings
from privet.models import resnet as resnet
from privet.models import sequences as sequences
from privet.models.base import model as model
from privet.models.base import register as register
from privet.models.base import registry as registry
from privet.models.base import width_after as width_after
from privet.models.fine_tuning import Loaded as Loaded
from privet.models.fine_tuning import freeze as freeze
from privet.models.fine_tuning import from_checkpoint as from_checkpoint
