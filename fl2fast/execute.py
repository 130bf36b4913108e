"""From what an experiment asks for to how its networks run, every `auto` resolved."""

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor, nn

from fl2fast.engine.auto import Trial, choose_extras, choose_lowering
from fl2fast.errors import UsageError
from fl2fast.experiment import Experiment
from fl2fast.methods.method import CentralPart, ClientPart, Part
from fl2fast.models.execution import KERNELS, Execution
from fl2fast.models.lowering import check_lowering
from fl2fast.precision import check_precision, set_precision


def choose_executions(
    experiment: Experiment,
    module: nn.Module,
    like: Tensor,
    image_shape: tuple[int, ...],
    say: Callable[[str], object] = lambda sentence: None,
) -> tuple[Experiment, Execution, Execution]:
    """The experiment as it will run, and how its clients and its server are executed."""
    e, method = experiment, experiment.make_method()
    check_precision(e.precision, e.dtype, like.device)
    set_precision(e.precision)  # what is timed now is what will run
    own = e.lowering if e.server_lowering == "auto" else e.server_lowering
    for lowering in {e.lowering, own} - {"auto"}:
        if ".py:" in e.model:
            check_lowering(module, lowering, image_shape)
        if lowering == "cores" and e.compile == "on":
            raise UsageError(
                "--compile on cannot go with --lowering cores: use --lowering grouped, or "
                "--compile off"
            )
    asked = Execution(
        e.lowering, e.compile == "on", e.backward == "shared", _kernels(e.kernels), e.precision
    )
    if asked.shared_backward and asked.kernels & {"norm", "conv"}:
        raise UsageError(
            f"backward 'shared' cannot go with kernels {e.kernels!r}: norm and conv take one "
            "cotangent at a time; use backward 'separate', or drop them"
        )
    lanes = min(e.chunk or e.seeds * e.cohort, e.seeds * e.cohort)
    seeds = min(e.chunk or e.seeds, e.seeds)
    server_part = method.server or method.main
    server_rows = batch_rows(e, server_part)
    trial = Trial(
        module, server_part, method.learner, like, e.model, seeds, server_rows, image_shape
    )
    server_trial = trial
    if method.client is not None:
        trial = trial._replace(part=method.client, lanes=lanes, batch=e.batch_size)
    clients, server = asked, asked._replace(lowering=own)
    if e.lowering == "auto":
        clients = choose_lowering(trial, clients, "lowering", say)
    if own == "auto":
        server = choose_lowering(server_trial, server, "server lowering", say)
    wanted = {"compile": e.compile, "backward": e.backward, "kernels": e.kernels}
    clients = choose_extras(trial, clients, wanted, say)
    server = clients._replace(
        lowering=server.lowering, compiled=clients.compiled and not server.alone
    )
    resolved = replace(
        e,
        lowering=clients.lowering,
        server_lowering=server.lowering,
        compile="on" if clients.compiled else "off",
        backward="shared" if clients.shared_backward else "separate",
        kernels=",".join(k for k in KERNELS if k in clients.kernels) or "none",
    )
    return resolved, clients, server


def batch_rows(experiment: Experiment, part: Part) -> int:
    """Rows of a full batch."""
    if isinstance(part, CentralPart):
        return part.num_unlabelled
    return experiment.batch_size if isinstance(part, ClientPart) else experiment.server_batch_size


def _kernels(asked: str) -> frozenset[str]:
    names = frozenset(() if asked in ("auto", "none") else asked.split(","))
    unknown = sorted(names - set(KERNELS))
    if unknown:
        raise UsageError(
            f"unknown kernel {unknown[0]!r} in kernels {asked!r}: choose auto, none, or some of "
            f"{','.join(KERNELS)}"
        )
    return names
