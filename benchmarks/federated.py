"""What a private round costs: rounds a second and memory for 10 to 1,000 clients, beside plain FedAvg and Flower's own.

    python benchmarks/federated.py              some minutes
    python benchmarks/federated.py --quick      half a minute

Made-up images, 60 records a client, a small CNN, one local epoch. Four ways to make the same rounds, each in a process
of its own, on one core: plain FedAvg in a loop; Privet in one process, its ledger on disk; Flower's FedAvg and Privet's
ServerApp, both with Flower's messages over a grid in one process. The last table is accounting for ten million clients.
"""

import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table

from _measure import one_core

RECORDS = 60  # of a client
LOCAL = {"local_epochs": 1, "local_batch": 20, "local_lr": 0.05}
WAYS = ("plain", "privet", "flower", "privet on flower")


def made(clients: int) -> Any:
    """A task of random images."""
    import torch

    from privet.data.task import Task

    source = torch.Generator().manual_seed(0)
    x = torch.randn(clients * RECORDS, 1, 28, 28, generator=source)
    y = torch.randint(10, (clients * RECORDS,), generator=source)
    return Task(
        name="noise", train=(x, y), held_out=(x[:20], y[:20]), evaluation="made up", model="cnn",
        facts={"shape": (1, 28, 28), "classes": 10},
    )  # fmt: skip


def planned(clients: int, sampled: int, rounds: int) -> Any:
    from privet.planning import plan

    return plan(
        delta=1e-6, dataset_size=clients, batch_size=sampled, steps=rounds, noise_multiplier=2.0, solve="epsilon",
        unit="client"
    )  # fmt: skip


def plain(clients: int, sampled: int, rounds: int) -> Callable[[], None]:
    """FedAvg in a loop: a random choice of clients, the mean of their updates."""
    import torch

    from privet.federated import LocalTraining, local_update, partition
    from privet.noise.randomness import Randomness
    from privet.sampling.loading import gather

    task, work = made(clients), LocalTraining(epochs=1, batch=20, lr=0.05)
    model, parts = task.network(), partition(task, clients)

    def run() -> None:
        for _ in range(rounds):
            chosen = torch.randperm(clients)[:sampled].tolist()
            total = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
            for k in chosen:
                found = local_update(model, gather(task.train, parts[k]), task.losses, work, Randomness())
                for name, value in found.items():
                    total[name] += value.detach() / sampled
            with torch.no_grad():
                for name, p in model.named_parameters():
                    p -= total[name]

    return run


def privet(clients: int, sampled: int, rounds: int) -> Callable[[], None]:
    from privet.federated import federate

    p, task = planned(clients, sampled, rounds), made(clients)

    def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            federate(p, task, out=folder + "/f", clients=clients, evaluate_every=rounds, **LOCAL)

    return run


def flower(clients: int, sampled: int, rounds: int) -> Callable[[], None]:
    """Flower's FedAvg, with a client that does the same work."""
    import logging

    from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp.strategy import FedAvg

    from flower_grid import LocalGrid
    from privet.federated import LocalTraining, local_update, partition
    from privet.noise.randomness import Randomness
    from privet.sampling.loading import gather

    logging.getLogger("flwr").setLevel(logging.ERROR)
    task, work = made(clients), LocalTraining(epochs=1, batch=20, lr=0.05)
    model, parts, app = task.network(), partition(task, clients), ClientApp()

    @app.train()
    def train(message: Message, context: Any) -> Message:
        own = task.network()
        own.load_state_dict(message.content["arrays"].to_torch_state_dict())
        data = gather(task.train, parts[int(context.node_config["partition-id"])])
        found = local_update(own, data, task.losses, work, Randomness())
        after = {name: value - found[name] for name, value in own.state_dict().items()}
        content = {"arrays": ArrayRecord(after), "metrics": MetricRecord({"num-examples": RECORDS})}
        return Message(RecordDict(content), reply_to=message)

    def run() -> None:
        strategy = FedAvg(fraction_train=sampled / clients, fraction_evaluate=0.0, min_available_nodes=clients)
        strategy.start(
            LocalGrid(app, clients=clients, config={}), initial_arrays=ArrayRecord(model.state_dict()),
            num_rounds=rounds, train_config=ConfigRecord(),
        )  # fmt: skip

    return run


def privet_on_flower(clients: int, sampled: int, rounds: int) -> Callable[[], None]:
    from flower_grid import LocalGrid
    from privet.federated import federate, flower as apps, partition
    from privet.sampling.loading import gather

    p, task = planned(clients, sampled, rounds), made(clients)
    parts = partition(task, clients)
    apps._load_task = lambda _: task  # an object, not a name that could be loaded
    given = {"clients": clients, "evaluate_every": rounds, **LOCAL}

    def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            p.save(folder + "/plan.json")
            config = {"plan": folder + "/plan.json", "out": folder + "/f"}
            config |= {key.replace("_", "-"): value for key, value in given.items()}
            app = apps.client_app(lambda context, _: gather(task.train, parts[apps.client_number(context)]))
            grid = LocalGrid(app, clients=clients, config=config)
            federate(p, task, out=folder + "/f", fleet=apps.FlowerFleet(grid, clients=clients, wait=clients), **given)

    return run


MAKERS = {"plain": plain, "privet": privet, "flower": flower, "privet on flower": privet_on_flower}


def _measure(way: str, clients: int, sampled: int, rounds: int, to: Any) -> None:
    try:
        run = MAKERS[way](clients, sampled, rounds)
        start = time.process_time()
        run()
        taken = time.process_time() - start
        to.send((taken, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, ""))
    except Exception as error:
        to.send((0.0, 0.0, f"{type(error).__name__}: {error}"))


def measured(way: str, clients: int, sampled: int, rounds: int) -> tuple[float, float, str]:
    """(processor seconds, MB at most, what failed), in a process of its own."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(way, clients, sampled, rounds, there))
    process.start()
    there.close()
    try:
        return here.recv()  # type: ignore[no-any-return]
    except EOFError:
        return 0.0, 0.0, "it was killed"
    finally:
        process.join()


def rounds_table(settings: list[tuple[int, int]], rounds: int) -> Table:
    table = Table(title=f"{rounds} rounds, one core", box=box.SIMPLE_HEAD)
    for name in ("clients", "asked", "way", "rounds / s", "MB", "time / plain", "time / flower"):
        table.add_column(name, justify="right")
    for clients, sampled in settings:
        found = {way: measured(way, clients, sampled, rounds) for way in WAYS}
        for way, (seconds, most, failure) in found.items():
            ratios = [f"{seconds / found[base][0]:.2f}" if found[base][0] else "" for base in ("plain", "flower")]
            speed = failure or f"{rounds / seconds:.2f}"
            table.add_row(f"{clients:,}", f"{sampled:,}", way, speed, f"{most:.0f}", *ratios)
    return table


def accounting_table() -> Table:
    """Planning, pricing and sampling do not grow with the number of clients, only with how many are asked."""
    import numpy as np

    from privet.accounting.guarantee import format_outward
    from privet.planning import plan
    from privet.sampling.samplers import poisson_indices

    table = Table(title="2,000 rounds at epsilon 2, delta 0.1 / clients", box=box.SIMPLE_HEAD)
    for name in ("clients", "asked", "noise", "epsilon (certified)", "plan, s", "coins of a round, ms"):
        table.add_column(name, justify="right")
    for clients, sampled in ((10**4, 100), (10**5, 1000), (10**6, 1000), (10**7, 1000), (10**7, 10_000)):
        start = time.process_time()
        p = plan(
            epsilon=2.0, delta=0.1 / clients, dataset_size=clients, batch_size=sampled, steps=2000, unit="client",
            method="dynamic", rho_noise=2.0, rho_clip=2.0,
        )  # fmt: skip
        taken = time.process_time() - start
        source = np.random.default_rng(0)
        start = time.process_time()
        for _ in range(20):
            poisson_indices(clients, sampled / clients, source)
        coins = (time.process_time() - start) / 20 * 1000
        table.add_row(
            f"{clients:.0e}", f"{sampled:,}", " to ".join(f"{p.steps[at].noise_multiplier:.3f}" for at in (0, -1)),
            format_outward(p.guarantee.epsilon, up=True), f"{taken:.2f}", f"{coins:.3f}",
        )  # fmt: skip
    return table


@click.command()
@click.option("--quick", is_flag=True, help="Fewer clients and rounds.")
@click.option("--clients", help="Only so many: 10,1000.")
@click.option("--rounds", type=click.IntRange(1), help="Rounds of each measurement.")
@click.option("--part", type=click.Choice(["all", "rounds", "accounting"]), default="all")
def main(quick: bool, clients: str | None, rounds: int | None, part: str) -> None:
    """Measure private rounds beside plain ones, and accounting at ten million clients."""
    one_core()
    console = Console(width=None if sys.stdout.isatty() else 120)
    settings = [(10, 5), (100, 20)] if quick else [(10, 5), (100, 20), (300, 50), (1000, 100)]
    if clients is not None:
        settings = [(int(word), max(1, min(int(word) // 2, 100))) for word in clients.split(",")]
    if part != "accounting":
        console.print(rounds_table(settings, rounds or (2 if quick else 5)))
    if part != "rounds":
        console.print(accounting_table())


if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "tests")]  # the latter has a local grid
    main()
