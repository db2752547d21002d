"""Real processes under torchrun: the same weights everywhere, one ledger, a killed rank, sharded frozen layers."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from children import import_path
from privet import plan
from privet.ledger.reading import read_ledger

# A user's script. Each rank notes every noise it draws, and at the end what it has.
LOOP = """
import json, os, sys, time
from pathlib import Path
import torch
from torch import nn
from privet import Training
from privet.noise import release
from privet.errors import PrivetError
from privet.planning import Plan
from privet.training import loop_watch
from privet.training.processes import group
from privet.training.processes import checksum
from privet.training.resume import resume, save

folder, options = Path(sys.argv[1]), json.loads(sys.argv[2])
together = group(timeout=300)
rank = together.rank
drawn = os.open(folder / f"drawn-{rank}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
add_noise = release.add_noise

def noted(grads, *, divisor, **given):
    silent = {name: grad / divisor for name, grad in grads.items()}  # before noise goes on the sums themselves
    found = add_noise(grads, divisor=divisor, **given)
    os.write(drawn, f"{training.steps_done - 1} {checksum(list(found.values()))}\\n".encode())
    return silent if options.get("silent") else found

release.add_noise = noted
loop_watch.ALWAYS_CHECKED = 1  # the loop is the same in all of these runs
torch.manual_seed(rank)  # rank 0's weights are everyone's
g = torch.Generator().manual_seed(3)
x, y = torch.randn(300, 6, generator=g, dtype=torch.float64), torch.randint(3, (300,), generator=g)
p = Plan.load(folder / "plan.json")
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
begin = resume if (folder / "run" / "ledger.jsonl").exists() else Training
loss_fn = nn.CrossEntropyLoss(reduction="none")
with begin(model, optimizer, (x, y), p, out=folder / "run", group=together, max_physical_batch_size=40) as training:
    for inputs, targets in training:
        training.step(loss_fn(model(inputs), targets))
        if training.steps_done % 7 == 0:
            save(training)
        if rank and training.steps_done == options.get("hang"):
            time.sleep(600)  # until it is killed
    done = {"rank": rank, "weights": checksum(list(model.parameters())), "number": training.steps_done,
            "epsilon": training.spent().epsilon, "first": model[0].weight.flatten().tolist()}
(folder / f"done-{rank}.json").write_text(json.dumps(done))
"""

# What of a model may be wrapped or sharded, tried in the same processes.
WRAPPED = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

mesh = init_device_mesh("cpu", (2,))
found = {"rank": rank}

def network(shard):
    torch.manual_seed(5)
    made = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    made[2].requires_grad_(False)
    for layer in shard(made):
        fully_shard(layer, mesh=mesh)
    return made

def trained(model, begin=Training, **given):
    global training
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=0.05)
    with begin(model, optimizer, (x, y), p, group=together, **given) as training:
        for inputs, targets in training:
            training.step(loss_fn(model(inputs), targets))
            if training.steps_done == 4 and begin is Training and given:
                found["saved"] = save(training)
                break
    return torch.cat([p.detach().flatten() for p in trained]).tolist()

def refusal(make):
    try:
        make()
    except PrivetError as error:
        return f"{type(error).__name__}: {error}"

whole, sharded = network(lambda m: []), network(lambda m: [m[2]])
found["held"] = sharded[2].weight.to_local().numel(), sharded[2].weight.numel()
found["whole"], found["sharded"] = trained(whole), trained(sharded)
trained(network(lambda m: [m[2]]), out=folder / "sharded")
found["resumed"] = trained(network(lambda m: [m[2]]), resume, out=folder / "sharded")
found["refused"] = [
    refusal(lambda: trained(network(lambda m: [m[0]]))),
    refusal(lambda: trained(DistributedDataParallel(network(lambda m: [])))),
    refusal(lambda: Training(whole, torch.optim.SGD(whole.parameters(), lr=0.1), (x, y), p)),
]
(folder / f"found-{rank}.json").write_text(json.dumps(found))
"""


def loop(folder: Path, ranks: int = 2, **options: object) -> "subprocess.Popen[str]":
    """The script in a folder, begun or resumed."""
    run = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    command = [sys.executable, *run, str(folder / "loop.py"), str(folder), json.dumps(options)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


def finished(process: "subprocess.Popen[str]") -> tuple[int, str]:
    out, _ = process.communicate(timeout=600)
    return process.returncode, out


def prepared(folder: Path, steps: int, batch: int = 60, more: str = "") -> Path:
    folder.mkdir()
    plan(delta=1e-3, dataset_size=300, batch_size=batch, steps=steps, noise_multiplier=1.0, solve="epsilon").save(
        folder / "plan.json"
    )
    (folder / "loop.py").write_text(LOOP + more)
    return folder


def written(folder: Path, name: str, ranks: int) -> list[dict[str, Any]]:
    return [json.loads((folder / f"{name}-{rank}.json").read_text()) for rank in range(ranks)]


def drawn(folder: Path) -> list[tuple[int, str]]:
    lines = [line.split() for file in folder.glob("drawn-*") for line in file.read_text().splitlines()]
    return [(int(number), noise) for number, noise in lines]


@pytest.mark.slow
def test_two_processes_make_the_weights_of_one(tmp_path):
    """Full batches, noise drawn and thrown away: equal to 12 digits; on both ranks the same bits.

    Frozen layers may be sharded by FSDP, with the same result; what cannot be private is refused.
    """
    many, one = prepared(tmp_path / "many", 8, 300, WRAPPED), prepared(tmp_path / "one", 8, 300)
    running = loop(many, silent=True)
    alone = finished(loop(one, ranks=1, silent=True))
    code, out = finished(running)
    assert (code, alone[0]) == (0, 0), out + alone[1]
    first, second = written(many, "done", 2)
    assert first["weights"] == second["weights"]
    assert (first["number"], first["epsilon"]) == (second["number"], second["epsilon"])
    assert first["first"] == pytest.approx(written(one, "done", 1)[0]["first"], rel=1e-12, abs=1e-12)
    assert read_ledger(many / "run").ledger.steps == 8
    assert len(drawn(many)) >= 2 * 8
    for found in written(many, "found", 2):
        assert found["held"] == [32, 64]
        assert found["sharded"] == pytest.approx(found["whole"], rel=1e-12, abs=1e-12)
        assert found["resumed"] == pytest.approx(found["whole"], rel=1e-12, abs=1e-12)
        assert bool(found["saved"]) == (found["rank"] == 0)
        sharded, wrapped, apart = found["refused"]
        assert sharded.startswith("Unsupported: model: 0.weight, 0.bias is trained and sharded by FSDP")
        assert wrapped.startswith("Unsupported: model=DistributedDataParallel averages gradients")
        assert apart.startswith("InvalidValue: group=None in one of several processes")


def kill_one(
    process: "subprocess.Popen[str]", folder: Path, *, after: int, victim: int, pause: float = 0.0
) -> tuple[int, str]:
    """Kill one rank with -9 once the ledger has `after` lines of steps; how the job ends then."""
    ledger = folder / "run" / "ledger.jsonl"
    while process.poll() is None and (not ledger.exists() or ledger.read_bytes().count(b'{"step":') <= after):
        time.sleep(0.002)
    time.sleep(pause)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    workers = sorted(map(int, children)) or [process.pid]
    os.kill(workers[victim % len(workers)], signal.SIGKILL)
    return finished(process)


def check_spending(folder: Path, steps: int) -> None:
    """Nothing was drawn that is not charged, and nothing twice."""
    charged = read_ledger(folder / "run").ledger.steps
    assert all(number < charged for number, _ in drawn(folder))
    assert len({noise for _, noise in drawn(folder)}) == len(drawn(folder))
    assert charged <= steps


@pytest.mark.slow
def test_a_killed_rank_stops_the_job_and_it_goes_on(tmp_path):
    folder = prepared(tmp_path / "a", 60)
    code, out = kill_one(loop(folder, hang=40), folder, after=20, victim=1)
    assert code != 0
    assert "SIGKILL" in out or "-9" in out
    check_spending(folder, 60)
    assert len(drawn(folder)) >= 2 * 19
    before = read_ledger(folder / "run").ledger.steps
    assert 20 <= before <= 41
    code, out = finished(loop(folder, ranks=1))  # with as many as there are
    assert code == 0, out
    assert written(folder, "done", 1)[0]["number"] == read_ledger(folder / "run").ledger.steps == 60
    check_spending(folder, 60)


@pytest.mark.prove
def test_ranks_killed_at_random_moments(tmp_path):
    """Eight kills of any rank, with one to three ranks; each run goes on from the last, and ends as planned."""
    seed = random.SystemRandom().randrange(2**32)
    dice = random.Random(seed)
    print("seed", seed)
    folder, steps = prepared(tmp_path / "a", 2000), 2000
    for _ in range(8):
        ledger = folder / "run" / "ledger.jsonl"
        lines = ledger.read_bytes().count(b"\n") if ledger.exists() else 0
        after = lines + dice.randint(1, 60)
        running = loop(folder, ranks=dice.choice([1, 2, 2, 3]))
        code, _ = kill_one(running, folder, after=after, victim=dice.randrange(3), pause=dice.random() / 50)
        assert code != 0
        check_spending(folder, steps)
    code, out = finished(loop(folder, ranks=2))
    assert code == 0, out
    check_spending(folder, steps)
    assert len(drawn(folder)) > steps
    one, other = written(folder, "done", 2)
    assert one["weights"] == other["weights"]
    assert one["number"] == steps
    given = {"delta": 1e-3, "dataset_size": 300, "batch_size": 60, "noise_multiplier": 1.0, "solve": "epsilon"}
    assert one["epsilon"] == pytest.approx(plan(**given, steps=steps).guarantee.epsilon)


# A task of the user's own, for the command.
TASK = """
import torch
from torch import nn
from privet.data.task import Task

def small() -> Task:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(400, 6, generator=g)
    y = (x[:, 0] > 0).long()
    return Task(name="small", train=(x[:300], y[:300]), held_out=(x[300:], y[300:]), evaluation="made up",
                model=lambda: nn.Linear(6, 2))
"""


@pytest.mark.prove
def test_the_command_trains_on_two_processes_is_killed_and_resumes(tmp_path, monkeypatch):
    folder = prepared(tmp_path / "a", 900)
    (folder / "of_mine.py").write_text(TASK)
    monkeypatch.setenv("PYTHONPATH", import_path(folder))
    begin = ["--plan", str(folder / "plan.json"), "--task", "of_mine:small", "--out", str(folder / "run")]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "privet"]

    def train(*words: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [*command, "train", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    code, _ = kill_one(train(*begin, "--save-every", "20"), folder, after=15, victim=1)
    assert code != 0
    assert 0 < read_ledger(folder / "run").ledger.steps < 900
    code, out = finished(train(*begin))
    assert code != 0
    assert "holds a run already" in out
    code, out = finished(train("--resume", str(folder / "run")))
    assert code == 0, out
    assert out.count("guarantee epsilon <=") == 1  # one rank speaks
    assert read_ledger(folder / "run").ledger.steps == 900
