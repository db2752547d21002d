"""Datasets as tasks. Importing this registers the product's own and reads none; others come by entry points."""

from privet.data import images as images
from privet.data import tables as tables
from privet.data.files import DataFolders as DataFolders
from privet.data.task import ACCURACY as ACCURACY
from privet.data.task import RMSE as RMSE
from privet.data.task import Measure as Measure
from privet.data.task import Task as Task
from privet.data.task import cross_entropy as cross_entropy
from privet.data.task import register as register
from privet.data.task import registry as registry
from privet.data.task import task as task
