"""Memory and time of one SACR step at CIFAR-100's size: python -m benchmarks.wide

wrn-28-8, 100 classes, batches of 32 random images, two lanes, one at a time (--chunk 1).

Shapes: L lanes, B rows of a batch, C, H, W of an image, P parameters.
"""

import resource
import time

import click
import numpy as np
import torch

from benchmarks.harness import write_record
from fl2fast.data.plan import LaneBatch, make_waves
from fl2fast.engine.local import Step, local_step
from fl2fast.memory import keep_freed_memory
from fl2fast.methods import METHODS
from fl2fast.methods.method import Batch
from fl2fast.models import find_model
from fl2fast.models.network import Network
from fl2fast.optim import SGD

LANES, BATCH, CLASSES, MODEL = 2, 32, 100, "wrn-28-8"


@click.command()
@click.option("--lowering", default="grouped", show_default=True)
@click.option("--chunk", default=1, show_default=True)
def main(lowering: str, chunk: int) -> None:
    keep_freed_memory()
    draws = torch.Generator().manual_seed(0)
    like = torch.zeros(())
    network = Network.of(find_model(MODEL)(CLASSES), lowering, like)
    params_LP = network.weights_P.repeat(LANES, 1)
    buffer_LP = torch.zeros_like(params_LP)
    view_LBCHW = torch.randn(LANES, BATCH, 3, 32, 32, generator=draws)
    y_LB = torch.randint(0, CLASSES, (LANES, BATCH), generator=draws)
    sure_LB = torch.rand(LANES, BATCH, generator=draws) < 0.5
    keep_LB = torch.ones_like(sure_LB)
    steps = [[LaneBatch(0, np.arange(BATCH))] for _ in range(LANES)]
    waves = make_waves(steps, sure_LB.numpy(), batch_size=BATCH, chunk=chunk)
    client = METHODS["flfl"](rho=1.0).client
    assert client is not None
    before, lr = params_LP.clone(), torch.tensor(0.03)
    step = Step.of(client, network, params_LP[0])
    started = time.perf_counter()
    for wave in waves:
        lane_L = torch.from_numpy(wave.lane_G)
        own = (view_LBCHW[lane_L], y_LB[lane_L], None, keep_LB[lane_L], sure_LB[lane_L])
        batch = Batch(lane_L, *own, wave.sureness)
        local_step(network, step, SGD(), lr, params_LP, buffer_LP, batch)
    seconds = time.perf_counter() - started
    moved = (params_LP - before).norm(dim=1).tolist()
    row = {
        "model": MODEL,
        "lanes": LANES,
        "chunk": chunk,
        "batch": BATCH,
        "classes": CLASSES,
        "lowering": lowering,
        "seconds": seconds,
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "moved": moved,
    }
    click.echo(row)
    click.echo(f"recorded in {write_record('wide', [row])}")


if __name__ == "__main__":
    main()
