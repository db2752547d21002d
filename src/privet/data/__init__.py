"""Real datasets as tasks, one file per kind; importing this registers them all and reads none."""

from privet.data import cifar as cifar
from privet.data import images as images
from privet.data import infinite as infinite
from privet.data import lfw as lfw
from privet.data import own as own
from privet.data import ratings as ratings
from privet.data import tabular as tabular
from privet.data import text as text
from privet.data.files import Where as Where
from privet.data.task import ACCURACY as ACCURACY
from privet.data.task import RMSE as RMSE
from privet.data.task import Measure as Measure
from privet.data.task import Task as Task
from privet.data.task import cross_entropy as cross_entropy
from privet.data.task import register as register
from privet.data.task import registry as registry
from privet.data.task import task as task
