# pyright: reportMissingImports=false
"""FedAvg in Flower's simulation on Ray: python flower_fedavg.py FOLDER RESULT

One core per client, so that as many train at once as there are cores. Nodes introduce themselves
before the first round, which tells the server who is who and lets the workers load their data
outside the measured time.
"""

import sys
import time
from collections.abc import Iterable

from flower_client import app as client_app
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from protocol import Stopwatch, Work, load, make_model, test_accuracy, write_result


class PlannedFedAvg(FedAvg):
    """Flower's own FedAvg; only the cohort is taken from the plan instead of being drawn."""

    def __init__(self, work: Work, node_of: dict[int, int]) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.work, self.node_of = work, node_of

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        config["server-round"] = server_round
        record = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        nodes = [self.node_of[client] for client in self.work.cohort_RK[server_round - 1].tolist()]
        return self._construct_messages(record, nodes, MessageType.TRAIN)


def who_is_who(grid: Grid, num_clients: int, folder: str) -> dict[int, int]:
    """The node of every client."""
    while len(nodes := list(grid.get_node_ids())) < num_clients:
        time.sleep(0.1)
    record = RecordDict({"config": ConfigRecord({"folder": folder})})
    asked = [Message(record, dst_node_id=node, message_type=MessageType.QUERY) for node in nodes]
    replies = grid.send_and_receive(asked, timeout=600)
    return {int(r.content["config"]["client"]): r.metadata.src_node_id for r in replies}


def main(folder: str, result: str) -> None:
    work = load(folder)
    model, watch, server_app = make_model(work), Stopwatch(), ServerApp()

    def evaluate(round: int, arrays: ArrayRecord) -> MetricRecord | None:
        if round == 0:
            watch.start()
            return None
        accuracy = None
        if work.due(round):
            model.load_state_dict(arrays.to_torch_state_dict())
            accuracy = test_accuracy(work, model)
        watch.finish_round(accuracy)
        return None

    @server_app.main()
    def serve(grid: Grid, context: object) -> None:
        strategy = PlannedFedAvg(work, who_is_who(grid, work.settings["clients"], folder))
        strategy.start(
            grid,
            ArrayRecord(model.state_dict()),
            num_rounds=work.settings["rounds"],
            train_config=ConfigRecord({"folder": folder}),
            evaluate_fn=evaluate,
        )

    run_simulation(
        server_app,
        client_app,
        num_supernodes=work.settings["clients"],
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    how = "Ray, one core per client, one thread each"
    write_result(result, watch, model.state_dict(), ["flwr", "ray", "torch"], how)


if __name__ == "__main__":
    main(*sys.argv[1:])
