"""Loops that mix the records of a batch before the model sees them, by ways that are hard to follow."""

import copy
import ctypes
import io
import pickle
import threading
import warnings
from collections import UserDict, UserList
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset, default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from adversarial.replay import Loops

LOOPS = Loops()


def each(outputs, targets):
    return F.cross_entropy(outputs, targets, reduction="none")


def standard(x):
    """Standardised over the batch: each row depends on all."""
    return (x - x.mean(0)) / (x.std(0) + 1e-3)


# --- batches in containers of their own -------------------------------------------------------------


@dataclass
class Record:
    x: Tensor
    y: Tensor


def _stack_records(batch, *, collate_fn_map=None):
    return Record(torch.stack([record.x for record in batch]), torch.stack([record.y for record in batch]))


default_collate_fn_map[Record] = _stack_records


class Wrapped(Dataset):
    """Records in a container that torch stacks and hands on as it is."""

    def __init__(self, x, y, wrap):
        self.x, self.y, self.wrap = x, y, wrap

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.wrap(self.x[index], self.y[index])


def in_user_dict(x, y):
    return Wrapped(x, y, lambda a, b: UserDict(x=a, y=b))


def in_user_list(x, y):
    return Wrapped(x, y, lambda a, b: UserList([a, b]))


def in_dataclass(x, y):
    return Wrapped(x, y, Record)


@LOOPS.body(3, dataset=in_user_dict)
def batch_in_a_user_dict(m, batch):
    return each(m(standard(batch["x"])), batch["y"])


@LOOPS.body(3, dataset=in_user_list)
def batch_in_a_user_list(m, batch):
    return each(m(standard(batch[0])), batch[1])


@LOOPS.body(3, dataset=in_dataclass)
def batch_in_a_dataclass(m, batch):
    return each(m(standard(batch.x)), batch.y)


@LOOPS.body(3, dataset=in_user_dict)
def classes_counted_in_a_user_dict(m, batch):
    y = batch["y"]
    return each(m(batch["x"]), y) * torch.cos(3.0 * torch.bincount(y, minlength=3))[y]


# --- copies that lose their origin ------------------------------------------------------------------


@LOOPS.body(3)
def by_deepcopy(m, x, y):
    return each(m(standard(copy.deepcopy(x))), y)


@LOOPS.body(3)
def by_parameter(m, x, y):
    return each(m(standard(nn.Parameter(x))), y)


@LOOPS.body(3)
def by_parameter_of_the_result(m, x, y):
    return each(m(nn.Parameter(standard(x))), y)


@LOOPS.body(3)
def by_parameter_data(m, x, y):
    held = nn.Parameter(torch.empty(0))
    held.data = standard(x)
    return each(m(held), y)


@LOOPS.body(3)
def by_data_in_place(m, x, y):
    x.data.sub_(x.data.mean(0)).mul_(3 / (x.data.std(0) + 1e-3))
    return each(m(x), y)


@LOOPS.body(3)
def by_data_assigned(m, x, y):
    x.data = standard(x.data)
    return each(m(x), y)


@LOOPS.body(3)
def by_set(m, x, y):
    own = torch.empty(0)
    own.set_(standard(x))
    return each(m(own), y)


@LOOPS.body(3)
def by_shared_storage(m, x, y):
    own = torch.empty(0).set_(x.untyped_storage(), 0, x.shape, x.stride())
    own.copy_(standard(own))
    return each(m(x), y)


@LOOPS.body(3)
def by_untyped_storage(m, x, y):
    x.untyped_storage().copy_(standard(x).untyped_storage())
    return each(m(x), y)


@LOOPS.body(3)
def by_subclass(m, x, y):
    class Own(Tensor):
        pass

    return each(m(standard(x.as_subclass(Own)).as_subclass(Tensor)), y)


@LOOPS.body(3)
def by_inference_mode(m, x, y):
    with torch.inference_mode():
        mean, std = x.mean(0), x.std(0)
    return each(m((x - mean.clone()) / (std.clone() + 1e-3)), y)


# --- out of torch and back --------------------------------------------------------------------------


@LOOPS.body(3)
def by_numpy_in_place(m, x, y):
    rows = x.numpy()
    rows[...] = (rows - rows.mean(0)) / (rows.std(0) + 1e-3)
    return each(m(x), y)


@LOOPS.body(3)
def by_numpy_method_in_place(m, x, y):
    rows = x.numpy()
    rows -= rows.mean(0)
    rows *= 3 / rows.std(0)
    return each(m(x), y)


@LOOPS.body(3)
def by_numpy_round_trip(m, x, y):
    return each(m(torch.from_numpy(standard_rows(x.numpy()))), y)


def standard_rows(rows):
    return ((rows - rows.mean(0)) / (rows.std(0) + 1e-3)).astype(np.float32)


@LOOPS.body(3)
def by_as_tensor(m, x, y):
    return each(m(torch.as_tensor(standard_rows(np.asarray(x)))), y)


@LOOPS.body(3)
def by_tensor_of_numpy(m, x, y):
    return each(m(torch.tensor(standard_rows(x.numpy().copy()))), y)


@LOOPS.body(3)
def by_lists(m, x, y):
    return each(m(standard(torch.tensor(x.tolist()))), y)


@LOOPS.body(3)
def by_floats(m, x, y):
    mean = [sum(float(row[j]) for row in x) / len(x) for j in range(x.shape[1])]
    return each(m(torch.tensor([[3 * (float(v) - c) for v, c in zip(row, mean, strict=True)] for row in x])), y)


@LOOPS.body(3)
def by_dlpack(m, x, y):
    return each(m(standard(torch.from_dlpack(x))), y)


@LOOPS.body(3)
def by_dlpack_to_numpy(m, x, y):
    return each(m(torch.from_numpy(standard_rows(np.from_dlpack(x).copy()))), y)


@LOOPS.body(3)
def by_pickle(m, x, y):
    return each(m(standard(pickle.loads(pickle.dumps(x)))), y)


@LOOPS.body(3)
def by_saved_file(m, x, y):
    file = io.BytesIO()
    torch.save(standard(x), file)
    file.seek(0)
    return each(m(torch.load(file)), y)


@LOOPS.body(3)
def by_bytes(m, x, y):
    return each(m(standard(torch.frombuffer(bytearray(x.numpy().tobytes()), dtype=x.dtype).view(x.shape))), y)


@LOOPS.body(3)
def by_memory(m, x, y):
    own = standard(x).contiguous()
    ctypes.memmove(x.data_ptr(), own.data_ptr(), x.numel() * x.element_size())
    return each(m(x), y)


# --- where operations are not seen ------------------------------------------------------------------


@LOOPS.body(3)
def by_a_thread(m, x, y):
    found = []
    thread = threading.Thread(target=lambda: found.append(standard(x)))
    thread.start()
    thread.join()
    return each(m(found[0]), y)


@LOOPS.body(3)
def by_a_pool_of_threads(m, x, y):
    with ThreadPoolExecutor(1) as pool:
        mean, std = pool.submit(x.mean, 0).result(), pool.submit(x.std, 0).result()
    return each(m((x - mean) / (std + 1e-3)), y)


@LOOPS.body(3)
def by_a_thread_in_place(m, x, y):
    thread = threading.Thread(target=lambda: x.copy_(standard(x)))
    thread.start()
    thread.join()
    return each(m(x), y)


# pytest may import this file under two names, and of two operators with one name torch takes the first away.
OPERATORS = __name__.replace(".", "_")


@torch.library.custom_op(f"{OPERATORS}::standard", mutates_args=())
def standard_op(x: Tensor) -> Tensor:
    return standard(x)


@torch.library.custom_op(f"{OPERATORS}::standard_", mutates_args={"x"})
def standard_op_(x: Tensor) -> None:
    x.copy_(standard(x))


@LOOPS.body(3)
def by_a_custom_op(m, x, y):
    return each(m(standard_op(x)), y)


@LOOPS.body(3)
def by_a_custom_op_in_place(m, x, y):
    standard_op_(x)
    return each(m(x), y)


class StandardFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.from_numpy(standard_rows(x.detach().numpy()))

    @staticmethod
    def backward(ctx, grad):
        return grad


@LOOPS.body(3)
def by_an_autograd_function(m, x, y):
    return each(m(StandardFunction.apply(x)), y)


class Times(torch.autograd.Function):
    """The losses as they are; their gradient is multiplied."""

    @staticmethod
    def forward(ctx, losses, factor):
        ctx.save_for_backward(factor)
        return losses.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0], None


@LOOPS.body(3)
def gradient_turned_by_an_autograd_function(m, x, y):
    return Times.apply(each(m(x), y), torch.sign(x.mean()))


@LOOPS.body(3)
def gradient_turned_by_a_hook_of_a_tensor(m, x, y):
    out = m(x)
    out.register_hook(lambda grad: grad * torch.sign(x.mean()))
    return each(out, y)


@LOOPS.body(3)
def gradient_turned_by_a_hook_of_a_node(m, x, y):
    losses = each(m(x), y)
    losses.grad_fn.register_prehook(lambda grads: (grads[0] * torch.sign(x.mean()),))
    return losses


@LOOPS.body(3)
def by_a_sparse_tensor(m, x, y):
    mean = torch.sparse.mm(torch.full((1, len(x)), 1 / len(x)).to_sparse(), x)
    return each(m(3 * (x - mean)), y)


@LOOPS.body(3)
def by_collated_rows(m, x, y):
    mean = x.mean(0)
    return each(m(default_collate([3 * (row - mean) for row in x])), y)


@LOOPS.body(3)
def by_a_generator(m, x, y):
    means = (column.mean() for column in x.T)
    return each(m(torch.stack([3 * (c - mean) for c, mean in zip(x.T, means, strict=True)], 1)), y)


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    scripted = torch.jit.script(standard)


@LOOPS.body(3)
def by_a_script(m, x, y):
    return each(m(scripted(x)), y)


@LOOPS.body(3)
def by_vmap(m, x, y):
    return each(m(torch.func.vmap(lambda column: 3 * (column - column.mean()), in_dims=1, out_dims=1)(x)), y)


@LOOPS.body(3)
def by_a_hook_of_the_model(m, x, y):
    hook = m.register_forward_pre_hook(lambda _, inputs: (standard(inputs[0]),))
    try:
        return each(m(x), y)
    finally:
        hook.remove()


@LOOPS.body(3)
def by_a_hook_on_the_outputs(m, x, y):
    hook = m.register_forward_hook(lambda _, __, out: out * torch.sign(out.detach().mean()))
    try:
        return each(m(x), y)
    finally:
        hook.remove()
