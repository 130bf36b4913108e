# pyright: reportMissingImports=false
"""Flower's client: an importable module, so that workers keep what they have loaded.

A function that Ray ships by value would bring its own empty cache with every message.
"""

from functools import cache

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from protocol import Work, load, make_model
from torch import nn
from torch.nn.functional import cross_entropy

app = ClientApp()


@cache
def worker(folder: str) -> tuple[Work, nn.Module, torch.optim.SGD]:
    """Data, network and optimiser of this process, which all its clients take turns to use.

    One thread, since as many clients train at once as there are cores. SGD without momentum has no
    state to share, and its first use imports much of torch: better before the first round.
    """
    torch.set_num_threads(1)
    work = load(folder)
    model = make_model(work)
    return work, model, torch.optim.SGD(model.parameters(), lr=work.settings["lr"])


@app.query()
def introduce(message: Message, context: Context) -> Message:
    """Say which client this node is, and load the data before the first round."""
    worker(str(message.content["config"]["folder"]))
    client = ConfigRecord({"client": context.node_config["partition-id"]})
    return Message(content=RecordDict({"config": client}), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """One epoch of SGD from the global model."""
    config = message.content["config"]
    work, model, sgd = worker(str(config["folder"]))
    round = int(config["server-round"])
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    place = work.cohort_RK[round - 1].tolist().index(context.node_config["partition-id"])
    images, labels = work.client_rows(round, place)
    size = work.settings["batch_size"]
    for x, y in zip(images.split(size), labels.split(size), strict=True):
        sgd.zero_grad()
        cross_entropy(model(x), y).backward()
        sgd.step()
    reply = RecordDict(
        {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": len(labels)}),
        }
    )
    return Message(content=reply, reply_to=message)
