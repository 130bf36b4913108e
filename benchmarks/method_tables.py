"""Tables of what methods do, from their records: parity, baselines, reproduced cells."""

from typing import Any

from benchmarks.harness import machine


def _spread(row: dict[str, Any]) -> str:
    return f"{row['mean']:.1f} ± {row['std']:.1f}"


def _seeds(row: dict[str, Any]) -> str:
    return ", ".join(f"{value:.1f}" for value in row["test_accuracy"])


def methods_table(record: dict[str, Any]) -> str:
    names = list(record["rows"][0]["errors"])
    lines = [f"| method | {' | '.join(names)} |", "|" + "---|" * (len(names) + 1)]
    for row in record["rows"]:
        cells = " | ".join(f"{row['errors'][name]:.0e}" for name in names)
        lines.append(f"| `{row['method']}` | {cells} |")
    return "\n".join([*lines, "", f"float64; {machine(record)}."])


def baselines_table(record: dict[str, Any]) -> str:
    lines = ["| method | test accuracy, mean ± std (%) | per seed |", "|---|---|---|"]
    lines += [f"| {row['title']} | {_spread(row)} | {_seeds(row)} |" for row in record["rows"]]
    note = (
        f"streetdigits, {record['labels']} labels, {record['train_size']:,} images, "
        f"{record['clients']} clients, {record['rounds']} rounds, `{record['model']}`; "
        f"{machine(record)}."
    )
    return "\n".join([*lines, "", note])


def _of(record: dict[str, Any], target: str) -> list[dict[str, Any]]:
    return [row for row in record["rows"] if row["target"] == target]


def reproduced_table(record: dict[str, Any]) -> str:
    """Table 2, a column for every dataset it was run on."""
    rows = _of(record, "table2")
    datasets = {row["dataset"]: row["labels"] for row in rows}
    heads = [f"{name}, {labels} labels, ours" for name, labels in datasets.items()]
    lines = [
        f"| Table 2 | {' | '.join(heads)} | the paper's, SVHN with 40 labels |",
        "|" + "---|" * (len(heads) + 2),
    ]
    for title in dict.fromkeys(row["row"] for row in rows):
        own = {row["dataset"]: row for row in rows if row["row"] == title}
        cells = [f"{_spread(own[d])} ({_seeds(own[d])})" if d in own else "-" for d in datasets]
        published = next((r["published_mean"] for r in own.values() if r["published_mean"]), None)
        theirs = "-" if published is None else f"{published:.1f}"
        lines.append(f"| {title} | {' | '.join(cells)} | {theirs} |")
    others = record["settings"]
    note = (
        f"Scale mini: test accuracy (%) after the last round, mean ± std (n = 3); settings other "
        f"than the paper's: {others['table2']}; on streetdigits {others['table2-streetdigits']}; "
        f"{machine(record)}."
    )
    return "\n".join([*lines, "", note])


def figures_table(record: dict[str, Any]) -> str:
    """The last round of Fig. 3's and Fig. 4's curves."""
    lines = [
        "| figure | data | method | test accuracy | pseudo-label accuracy | label ratio | wrong "
        "ratio | correct / wrong |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for target in ("fig3", "fig4"):
        for row in _of(record, target):
            last = row["last_round"]
            cells = [
                "-" if last[name] is None else f"{last[name]:.{digits}f}"
                for name, digits in (
                    *(("pseudo_label_accuracy", 1), ("label_ratio", 1)),
                    *(("wrong_ratio", 1), ("cw_ratio", 2)),
                )
            ]
            data = f"{row['dataset']}, {row['labels']} labels"
            parts = (target, data, row["row"], _spread(row), *cells)
            lines.append(f"| {' | '.join(parts)} |")
    return "\n".join([*lines, "", f"Percent, means of three seeds; {machine(record)}."])


def texts_table(record: dict[str, Any]) -> str:
    lines = [
        "| AG News with 20 labels | ours, mean ± std (%) | per seed | the paper's |",
        "|---|---|---|---|",
    ]
    for row in _of(record, "table3"):
        theirs = f"{row['published_mean']:.1f} ± {row['published_std']:.1f}"
        lines.append(f"| {row['row']} | {_spread(row)} | {_seeds(row)} | {theirs} |")
    return "\n".join([*lines, "", f"{record['settings']['table3']}; {machine(record)}."])
