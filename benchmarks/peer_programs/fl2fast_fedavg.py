"""FedAvg in fl2fast: python fl2fast_fedavg.py FOLDER RESULT"""

import json
import sys
from pathlib import Path

import torch
from protocol import Stopwatch, write_result

import fl2fast
from fl2fast.memory import keep_freed_memory

MODEL = f"{Path(__file__).with_name('small_cnn.py')}:small_cnn"


def main(folder: str, result: str) -> None:
    settings = json.loads((Path(folder) / "settings.json").read_text())
    keep_freed_memory()  # as `fl2fast train` does
    world = fl2fast.build_world(
        fl2fast.experiment(dataset=folder, model=MODEL, **settings["experiment"])
    )
    watch, params_SP = Stopwatch(), torch.empty(0)
    watch.start()
    for report in fl2fast.simulate(world):
        watch.finish_round(report.metrics[0]["test_accuracy"])
        params_SP = report.state.params_SP
    weights = world.network.layout.split(params_SP[0])
    how = f"{world.experiment.lowering}, {torch.get_num_threads()} threads"
    write_result(result, watch, weights, ["fl2fast", "torch"], how)


if __name__ == "__main__":
    main(*sys.argv[1:])
