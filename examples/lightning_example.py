"""Private training inside a Lightning Trainer: `python examples/lightning_example.py --out runs/lightning`.

Lightning moves the batches, logs, validates and keeps the weights; each step is made by `Training`.
"""

import argparse

import lightning
import torch
from lightning.pytorch.callbacks import LambdaCallback
from torch.utils.data import DataLoader, TensorDataset

from privet import Plan, Training, plan
from privet.data import Task, task


class PrivateDigits(lightning.LightningModule):
    def __init__(self, digits: Task, planned: Plan, out: str) -> None:
        super().__init__()
        self.automatic_optimization = False  # else Lightning would step by the raw gradient; that is refused
        self.digits, self.planned, self.out = digits, planned, out
        self.network = digits.network("tanh-cnn")
        self.private: Training | None = None

    def configure_optimizers(self):
        return torch.optim.SGD(self.network.parameters(), lr=1.0, momentum=0.9)

    def train_dataloader(self):  # called once the optimizer is there; `self.training` is a flag of torch's
        self.private = Training(self.network, self.optimizers(), self.digits.train, self.planned, out=self.out)
        return self.private

    def training_step(self, batch, _):
        x, y = batch
        self.private.step(self.digits.losses(self.network(x), y))  # do not log this loss: it is not private

    def val_dataloader(self):
        return DataLoader(TensorDataset(*self.digits.held_out), batch_size=500)

    def validation_step(self, batch, _):
        x, y = batch
        self.log("held_out_accuracy", self.digits.measure.each(self.network(x), y).mean())

    def configure_callbacks(self):  # also after an error: Lightning then moves the weights, and nothing may watch them
        return LambdaCallback(on_exception=self.close, on_fit_end=self.close)

    def close(self, *_):
        if self.private is not None:
            self.private.close()  # lets go of the ledger


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--out", default="runs/lightning", help="a new folder, for the ledger and Lightning's files")
    out = options.parse_args().out

    digits = task("digits")
    module = PrivateDigits(
        digits, plan(epsilon=3.0, delta=1e-5, dataset_size=digits.size, batch_size=256, epochs=2), out
    )
    trainer = lightning.Trainer(
        max_epochs=1,  # for Lightning the whole plan is one epoch
        val_check_interval=16, accelerator="cpu", devices=1, logger=False, default_root_dir=out,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module)
    print(f"held-out accuracy {trainer.callback_metrics['held_out_accuracy']:.3f} after {trainer.global_step} steps")
    print(module.private.spent())  # read from the ledger; `privet epsilon --from <out>` says the same
