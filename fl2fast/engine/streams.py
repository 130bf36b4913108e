"""A phase's plan: every lane's shuffled batches, and which of them step together.

Shapes: L lanes, M rows of a client.
"""

import numpy as np

from fl2fast.data.plan import Wave, make_streams, shuffled_batches
from fl2fast.engine.cores import Cores
from fl2fast.engine.world import Lanes


def plan_streams(
    cores: Cores,
    lanes: Lanes,
    rows_LM: np.ndarray,
    sure_LM: np.ndarray | None,
    *,
    purpose: str,
    round: int,
    epochs: int,
    batch_size: int,
    chunk: int,
) -> list[list[Wave]]:
    """Waves over the chosen rows, as the network that is to run them wants them."""
    steps = shuffled_batches(
        rows_LM,
        lanes.seed_L,
        lanes.client_L,
        purpose=purpose,
        round=round,
        epochs=epochs,
        batch_size=batch_size,
    )
    execution = cores.network.execution
    return make_streams(
        steps,
        sure_LM,
        batch_size=batch_size,
        chunk=chunk,
        steady=execution.compiled,
        alone=execution.alone,
    )
