"""Forward + backward images/s of every lowering: python -m benchmarks.lowerings [--repeats N]"""

import click
import torch

from benchmarks.harness import write_record
from fl2fast.memory import keep_freed_memory
from fl2fast.models import find_model
from fl2fast.models.lowering import LOWERINGS
from fl2fast.models.network import Network
from fl2fast.tune import interleave

CASES = [
    ("cnn", 1, 32),
    ("cnn", 10, 32),
    ("cnn", 100, 10),
    ("wrn-10-1", 1, 32),
    ("wrn-10-1", 10, 32),
    ("wrn-10-1", 100, 10),
    ("wrn-28-2", 1, 32),
    ("wrn-28-2", 10, 32),
]


def measure(model: str, num_lanes: int, batch: int, repeats: int) -> dict[str, float]:
    """Images/s of one forward and one backward of all lanes, 32 x 32 pixels, float32."""
    like = torch.zeros(())
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(num_lanes, batch, 3, 32, 32, generator=draws)
    cotangent = torch.randn(num_lanes, batch, 10, generator=draws)
    networks = {name: Network.of(find_model(model)(10), name, like) for name in LOWERINGS}
    width = next(iter(networks.values())).layout.width
    params = torch.randn(num_lanes, width, generator=draws) * 0.05

    def step(network: Network) -> torch.Tensor:
        _, pull = network.pullback(params, x, None)
        return pull(cotangent)

    calls = {name: (lambda net=net: step(net)) for name, net in networks.items()}
    seconds = interleave(calls, repeats, like.device)
    return {name: num_lanes * batch / value for name, value in seconds.items()}


@click.command()
@click.option("--repeats", default=5, show_default=True)
def main(repeats: int) -> None:
    keep_freed_memory()
    rows = []
    click.echo(
        f"{'model':<10}{'L':>5}{'B':>5}" + "".join(f"{n:>12}" for n in LOWERINGS) + "  vs loop"
    )
    for model, num_lanes, batch in CASES:
        rates = measure(model, num_lanes, batch, repeats)
        ratios = {name: rate / rates["loop"] for name, rate in rates.items()}
        rows.append(
            {"model": model, "lanes": num_lanes, "batch": batch, "rates": rates, "vs_loop": ratios}
        )
        cells = "".join(f"{rate:>12,.0f}" for rate in rates.values())
        versus = "  ".join(f"{n} {r:.2f}x" for n, r in ratios.items() if n != "loop")
        click.echo(f"{model:<10}{num_lanes:>5}{batch:>5}{cells}  {versus}")
    click.echo(f"recorded in {write_record('lowerings', rows, repeats=repeats)}")


if __name__ == "__main__":
    main()
