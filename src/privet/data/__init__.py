"""Real datasets as tasks, one file per kind."""

from privet.data.files import Where as Where
from privet.data.task import ACCURACY as ACCURACY
from privet.data.task import RMSE as RMSE
from privet.data.task import Measure as Measure
from privet.data.task import Task as Task
from privet.data.task import cross_entropy as cross_entropy
from privet.data.task import register as register
from privet.data.task import registry as registry
from privet.data.task import task as task
