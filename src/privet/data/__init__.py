"""Datasets as tasks. Importing this registers the product's own and reads none; others come by entry points."""

from privet.data import images as images, tables as tables
from privet.data.files import DataFolders as DataFolders
from privet.data.task import (
    ACCURACY as ACCURACY,
    RMSE as RMSE,
    Measure as Measure,
    Task as Task,
    cross_entropy as cross_entropy,
    register as register,
    registry as registry,
    task as task,
)
