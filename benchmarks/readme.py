"""Write the README's tables and picture from the newest records: python -m benchmarks.readme"""

import re
from pathlib import Path
from typing import Any

from benchmarks.harness import latest_record

README = Path(__file__).parents[1] / "README.md"


def machine(record: dict[str, Any]) -> str:
    env = record["environment"]
    return (
        f"{env['cores']} cores of {env['cpu']}, torch {env['versions']['torch']}, "
        f"{env['date'][:10]}"
    )


def demo_table(record: dict[str, Any]) -> str:
    lines = ["| | test accuracy, mean ± std (%) | per seed | training |", "|---|---|---|---|"]
    for row in record["rows"]:
        seeds = ", ".join(f"{value:.1f}" for value in row["test_accuracy"])
        lines.append(
            f"| {row['title']} | {row['mean']:.1f} ± {row['std']:.1f} | {seeds} | "
            f"{row['wall_seconds']:.0f} s |"
        )
    config = record["config"]
    note = (
        f"{config['labels']} labels, {config['train_size']:,} images, {config['clients']} clients, "
        f"{config['rounds']} rounds; {record['wall_seconds']:.0f} s in all on {machine(record)}."
    )
    return "\n".join([*lines, "", note])


def lowerings_table(record: dict[str, Any]) -> str:
    lines = [
        "| model | L x B | loop | vmap | grouped | grouped vs loop |",
        "|---|---|---|---|---|---|",
    ]
    for row in record["rows"]:
        rates = " | ".join(f"{row['rates'][name]:,.0f}" for name in ("loop", "vmap", "grouped"))
        lines.append(
            f"| {row['model']} | {row['lanes']} x {row['batch']} | {rates} | "
            f"{row['vs_loop']['grouped']:.2f}x |"
        )
    note = f"Images/s, medians of {record['repeats']} interleaved repeats; {machine(record)}."
    return "\n".join([*lines, "", note])


def reference_table(record: dict[str, Any]) -> str:
    lines = ["| trained on | test accuracy (%) |", "|---|---|"]
    for row in record["rows"]:
        seeds = ", ".join(f"{value:.1f}" for value in row["test_accuracy"])
        lines.append(f"| {row['title']} | {row['mean']:.1f} ± {row['std']:.1f} ({seeds}) |")
    return "\n".join([*lines, "", f"{record['about']} {machine(record)}."])


TABLES = {"demo": demo_table, "lowerings": lowerings_table, "streetdigits": reference_table}


def render(text: str) -> str:
    """The README with each fenced table made anew."""
    for name, table in TABLES.items():
        fence = re.compile(f"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        made = table(latest_record(name))
        text = fence.sub(lambda m, made=made: f"{m[1]}{made}\n{m[2]}", text)
    return text


def main() -> None:
    README.write_text(render(README.read_text()))


if __name__ == "__main__":
    main()
