"""What a run reads besides its settings, in one checksum."""

import hashlib
from pathlib import Path

import numpy as np
import torch

from fl2fast.engine.world import World


def fingerprint(world: World) -> str:
    """SHA-256 of inputs, labels, who holds what, and the user's own model and method."""
    digest = hashlib.sha256()
    inputs = vars(world.inputs).values()
    for tensor in (*filter(torch.is_tensor, inputs), world.truth, world.test_labels):
        digest.update(repr((tensor.shape, tensor.dtype)).encode())
        digest.update(np.ascontiguousarray(tensor.cpu().numpy()).data)
    for split in world.splits:
        for rows in (split.labelled, *split.clients):
            digest.update(rows.tobytes())
    for name in (world.experiment.model, world.experiment.method):
        if ".py:" in name:
            digest.update(Path(name.rpartition(":")[0]).read_bytes())
    return digest.hexdigest()
