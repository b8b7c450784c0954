"""Write ``benchmarks/tables.md`` from the stored results: ``python benchmarks/tables.py``.

Each function writes one topic from one or two files of ``results/``, with the device, driver, date and
command."""

from __future__ import annotations

import argparse
import json
import math
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results"
H200 = "One NVIDIA H200, driver 580.159.04"
PEER_KEYS = ("gpu_ms", "torch_graph_ms", "torch_compiled_ms")
SETUP = "torch_setup_s"
SLOW = 0.03  # list a shape if its chosen kernel is slower than the fastest one by more than this share


def read(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return the lines of a Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "| --- " * len(head) + "|"]
    return lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]


def us(value: float | None) -> str:
    """Return a time in microseconds or milliseconds as text with three digits, without its unit."""
    return "-" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def networks() -> list[str]:
    names = ("h200-networks-2026-11-23", "h200-networks-2026-11-23-evening")
    rows = {
        (one["model"].split(".")[0], one["batch"]): one for name in names for one in read(name)["networks"]
    }
    return [
        "## Whole networks",
        "",
        f"{H200}, 2026-11-23, int8, float32 images in; every output equals ONNX Runtime's. Milliseconds: "
        "`gpu` is the time between two device timestamps around the recorded network, `replay` the wall time "
        "of one replay, `run` the wall time of `InferenceSession.run` with NumPy arrays in and out.",
        "`python benchmarks/networks.py MODEL.onnx ...`",
        "",
        *table(
            ("network", "batch", "gpu ms", "replay ms", "run ms"),
            (
                (model, batch, *(f"{one[key]:.3f}" for key in ("gpu_ms", "replay_ms", "run_ms")))
                for (model, batch), one in sorted(rows.items())
            ),
        ),
    ]


def peers() -> list[str]:
    found = read("h200-networks-2026-11-30")
    return [
        "### Compared with PyTorch fp16, in one run on one machine",
        "",
        f"{H200}, 2026-11-30, PyTorch 2.11 in a CUDA graph: the eager network, and `torch.compile` in its "
        "default mode, with the seconds of its set-up. BERT has fused attention; ViT has attention written "
        "out. Times are milliseconds on the device. The last column counts vkq's outputs that equal ONNX "
        "Runtime's; `results/h200-networks-2026-11-30.json` has notes on the differences.",
        "`python benchmarks/quantized_models.py FOLDER; python benchmarks/networks.py FOLDER/*.onnx; "
        "python benchmarks/peers.py bert vit resnet50 mobilenet_v2 efficientnet_b0 --compile`",
        "",
        *table(
            ("network", "batch", "vkq", "PyTorch graph", "PyTorch compiled", "set-up s", "equal outputs"),
            (
                (
                    *(one[key] for key in ("network", "batch")),
                    *(f"{one[key]:.3f}" for key in PEER_KEYS),
                    *(one[key] for key in (SETUP, "equal")),
                )
                for one in found["networks"]
                if SETUP in one
            ),
        ),
    ]


def kernels() -> list[str]:
    found = read("h200-seed-gemv-resnet50-2026-11-23-noon")
    rows = [row for row in found["rows"] if row["clock"] == "gpu" and "tiled" not in row["variant"]]
    rows = [row for row in rows if "N=32," not in row["case"]]  # rows with N=32 are in the next table
    return [
        "## Int8 kernels",
        "",
        f"{H200}, {found['created'][:10]}, int8 in and out, per-channel scales. `{found['command']}`",
        "",
        *table(
            ("case", "kernel", "gpu us", "GOP/s"),
            (
                (
                    f"`{row['case']}`",
                    row["variant"].split(":")[0],
                    us(row["median_us"]),
                    f"{row['operations'] / row['median_us'] / 1e3:,.0f}",
                )
                for row in rows
            ),
        ),
    ]


def convolutions() -> list[str]:
    found = read("h200-resnet50-layers-torch-2026-11-22")
    return [
        "## ResNet-50's convolutions at batch 32 compared with PyTorch fp16",
        "",
        f"{H200}, 2026-11-22, PyTorch {found['torch']} in a CUDA graph on rotating data, in one run.",
        "`vkq bench` on cases of `resnet50_batches`, then `python benchmarks/torch_fp16.py` on its result.",
        "",
        *table(
            ("convolution", "vkq int8 us", "fp16 NCHW us", "fp16 channels_last us"),
            (
                (f"`{r['case']}`", us(r["vkq_us"]), us(r["torch_NCHW_us"]), us(r["torch_NHWC_us"]))
                for r in found["rows"]
            ),
        ),
    ]


def weight_only() -> list[str]:
    keys = ("float32 auto", "float16 auto", "float16 tensors auto")
    lines = ["## Weight-only layers (q8csw)", ""]
    for name in ("h200-float-2026-11-24", "h100-float-2026-11-24"):
        found = read(name)
        lines += [
            f"{found['device']}, driver {found['driver'].split()[-1]}, 2026-11-24. Each result is within its "
            "error bound of float64. PyTorch ran in a CUDA graph on rotating data, in the same run.",
            "`python benchmarks/float_h200.py --json FILE`",
            "",
            *table(
                (
                    "case",
                    "float32 us",
                    '`compute="float16"` us',
                    "float16 tensors us",
                    "PyTorch fp16 us",
                    "fp32 us",
                ),
                (
                    (
                        f"`{r['case']}`",
                        *(us(r[key]["us"]) for key in keys),
                        us(r["torch fp16"]),
                        us(r["torch fp32"]),
                    )
                    for r in found["rows"]
                ),
            ),
            "",
        ]
    return lines[:-1]


def movers() -> list[str]:
    found = read("h200-movers-2026-11-22")
    return [
        "## Operators that move data",
        "",
        f"{H200}, 2026-11-22; a copy reaches 3,355 GB/s. `vkq bench movers`",
        "",
        *table(
            ("operator", "us", "GB/s"),
            (
                (f"`{name}`", us(one["us"]), f"{one['gbs']:,.0f}")
                for name, one in found["third"].items()
                if "[" in name
            ),
        ),
    ]


def images() -> list[str]:
    found = read("h200-integer-2026-11-22")
    best: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for row in found["rows"]:
        if row["clock"] == "gpu":
            kinds = best.setdefault((row["case"], row["data"]), {})
            if row["what"] not in kinds or row["least_us"] < kinds[row["what"]]["least_us"]:
                kinds[row["what"]] = row
    names = ("vkq coopmat", "vkq dot", "vkq transform", "torch conv2d float32", "torch conv2d float64")
    return [
        "## Integer convolution of images",
        "",
        f"{H200}, 2026-11-22, shortest times in us. vkq and float64 are exact; float32 is exact only in the "
        "int8 row.",
        "`python benchmarks/integer_peers.py --json FILE`",
        "",
        *table(
            ("case", "data", *names),
            (
                (case, data, *(us(kinds[name]["least_us"]) if name in kinds else "-" for name in names))
                for (case, data), kinds in best.items()
            ),
        ),
    ]


def host() -> list[str]:
    copies = read("h200-copies-2026-11-22")
    workers = read("h200-two-map-2026-11-22")
    return [
        "## Host and device",
        "",
        f"{H200}, 16 CPUs, 2026-11-22, copies of 256 MiB. `{copies['command']}`",
        "",
        *table(
            ("copy", "vkq GB/s", "PyTorch GB/s"),
            (
                (name, f"{value:.1f}", f"{copies['torch_gb_s'][name]:.1f}")
                for name, value in copies["copies_gb_s"].items()
                if name in copies["torch_gb_s"]
            ),
        ),
        "",
        "Images per second of `map` on two H200s of one host, with one process for each GPU, float32 in and "
        "out.",
        "`python benchmarks/workers.py MODEL.onnx --workers 1 2`",
        "",
        *table(
            ("network", "batch", "workers", "images/s"),
            (
                (r["model"].split(".")[0], r["batch"], r["workers"], f"{r['images_per_s']:,.0f}")
                for r in workers["rows"]
            ),
        ),
    ]


def lavapipe() -> list[str]:
    found = read("lavapipe-int8-2026-11-29")
    names = ("vkq", "ncnn", "ncnn_float", "ncnn_cpu", "onnxruntime")
    return [
        "## lavapipe, a software device",
        "",
        f"{found['driver']}, {found['host']}, {found['date']}, ncnn {found['ncnn']}, in one run: process "
        "time in ms (wall time in brackets). vkq and ncnn have the same int8 weights and scales, and compute "
        "in int8 by Vulkan; `apart` is ncnn's largest difference from vkq, divided by the largest output. In "
        "float, ncnn's results differ by design. CPU kernels run on one thread. The table ranks no GPU.",
        f"`{found['command']}`",
        "",
        "On 22 November, ncnn took 165 ms for MobileNetV2 in float. On this processor it takes 1,590 to "
        "1,750 ms, with one or two threads, with fp16 on or off, without packing, and with pnnx's files. The "
        "first number is probably from another processor: there, ncnn's CPU kernels ran at 128 GFLOP/s, "
        "which one core of this processor cannot reach.",
        "",
        *table(
            (
                "network",
                "vkq int8",
                "ncnn int8",
                "ncnn / vkq",
                "apart",
                "ncnn float",
                "ncnn int8, CPU kernels",
                "ONNX Runtime int8, CPU",
            ),
            (
                (
                    r["network"],
                    *(f"{r[name]['cpu_ms']:.0f} ({r[name]['ms']:.0f})" for name in names[:2]),
                    f"{r['ncnn']['cpu_ms'] / r['vkq']['cpu_ms']:.1f}",
                    f"{100 * r['ncnn']['apart']:.1f} %",
                    *(f"{r[name]['cpu_ms']:.0f} ({r[name]['ms']:.0f})" for name in names[2:]),
                )
                for r in found["rows"]
            ),
        ),
    ]


def beside_ncnn() -> list[str]:
    found = read("h200-int8-2026-11-29")
    names = ("vkq", "ncnn", "ncnn_float")
    return [
        "## Int8 compared with ncnn on one NVIDIA H200",
        "",
        f"{found['device']}, {found['driver']}, {found['date']}, ncnn {found['ncnn']}, in one run, batch 1: "
        "wall time of one call in ms, NumPy arrays in and out. vkq and ncnn have the same int8 weights and "
        "scales; `apart` is ncnn's largest difference from vkq, divided by the largest output.",
        f"`{found['command']}`",
        "",
        *table(
            ("network", "vkq int8", "ncnn int8", "ncnn / vkq", "apart", "ncnn float"),
            (
                (
                    r["network"],
                    *(f"{r[name]['ms']:.2f}" for name in names[:2]),
                    f"{r['ncnn']['ms'] / r['vkq']['ms']:.1f}",
                    f"{100 * r['ncnn']['apart']:.1f} %",
                    f"{r['ncnn_float']['ms']:.2f}",
                )
                for r in found["rows"]
            ),
        ),
    ]


def decoders() -> list[str]:
    found = read("h200-decoders-2026-12-01")
    peers = {(row["what"], row["keys"]): row for row in found["rows"] if row["library"] == "torch"}
    rows = []
    for row in found["rows"]:
        if row["library"] == "vkq":
            of = peers[row["what"], row["keys"]]
            kind = row["dtype"] + (', `compute="float16"`' if row["compute"] == "float16" else "")
            wall, first = (f"{row[key]:.2f}" if key in row else "-" for key in ("wall_ms", "first_wall_ms"))
            own = row["gpu_ms"], of["gpu_ms"], row["gpu_ms"] / of["gpu_ms"]
            rows.append(
                (row["what"], row["keys"], kind, *(f"{x:.2f}" for x in own), row["dispatches"], wall, first)
            )
    return [
        "## A language model of 1.1 billion weights",
        "",
        f"{found['device']}, {found['driver']}, {found['date']}: a Llama of 16 layers with random 4-bit "
        "weights in groups of 128, compared with PyTorch's fp16 in a CUDA graph, in one run. A `token` row "
        "is one token after `keys` earlier tokens, a `prompt` row is a prompt of `keys` tokens.",
        "",
        "`gpu ms` is the time on the device, `wall ms` the wall time of a generated token of "
        "`LanguageModel`, and `first ms` the wall time from the start of a text to its first token. The "
        "prompt of these two times has 48 tokens less than `keys`.",
        f"`{found['command']}`",
        "",
        *table(
            (
                "run",
                "keys",
                "activations",
                "gpu ms",
                "PyTorch ms",
                "ratio",
                "dispatches",
                "wall ms",
                "first ms",
            ),
            rows,
        ),
    ]


def regret() -> list[str]:
    found = read("regret-2026-11-30")
    means = []
    for one in found["devices"]:
        for key, said in (("regret", "default"), ("regret_tuned", "after `vkq tune`")):
            each = [row[key] for row in one["rows"]]
            mean = math.exp(sum(map(math.log1p, each)) / len(each)) - 1
            means.append((one["device"], said, len(each), f"{100 * mean:.1f} %", f"{100 * max(each):.1f} %"))
    rows = [(one["device"].split()[0], row) for one in found["devices"] for row in one["rows"]]
    slow = [(where, row) for where, row in rows if row["regret"] > SLOW]
    return [
        "## Chosen kernels compared with the fastest",
        "",
        f"{found['date']}: the regret of a choice is the additional time that the chosen kernels take, "
        "relative to the fastest legal choice. Times are processor times on two busy cores, and device times "
        "on the H200 (2026-12-01). The H200 used costs that it measured at its first use, not its shipped "
        "file. `results/regret-2026-11-30.json` has notes.",
        f"`{found['command']}`",
        "",
        *table(("device", "choice", "shapes", "geometric mean", "worst"), means),
        "",
        f"Shapes whose default is more than {100 * SLOW:.0f} % slower:",
        "",
        *table(
            ("device", "problem", "us", "best us", "best choice", "regret", "after `vkq tune`"),
            (
                (
                    where, f"`{row['problem']}`", us(row["us"]), us(row["best_us"]), row["best"],
                    f"{100 * row['regret']:.1f} %", f"{100 * row['regret_tuned']:.1f} %",
                )
                for where, row in slow
            ),
        ),
    ]  # fmt: skip


def measured_tiles() -> list[str]:
    found = read("h200-tiles-2026-12-01")
    rows = (
        (r["network"], r["batch"], r["gpu_ms"]["file"], *r["gpu_ms"]["measured"], r["equal"])
        for r in found["rows"]
    )
    return [
        "## Networks with measured costs of tiles",
        "",
        f"{found['device']}, driver {found['driver']}, {found['date']}: milliseconds on the device with the "
        "shipped file of costs, and twice with costs measured in its place by `vkq tune --export`.",
        "",
        *table(("network", "batch", "file", "measured", "again", "equal outputs"), rows),
    ]


TOPICS: tuple[Callable[[], list[str]], ...] = (
    networks, peers, decoders, kernels, convolutions, weight_only, movers, images, host, beside_ncnn,
    lavapipe, regret, measured_tiles,
)  # fmt: skip


def text() -> str:
    head = [
        "# Results",
        "",
        "Made by `python benchmarks/tables.py` from `benchmarks/results`; do not edit.",
        "",
    ]
    lines = [*head, *(line for topic in TOPICS for line in (*topic(), ""))]
    return "\n".join(part for line in lines for part in wrapped(line))


def wrapped(line: str) -> list[str]:
    """Wrap prose at 110 columns; rows of tables are not wrapped."""
    return [line] if line.startswith(("|", "#")) or not line else textwrap.wrap(line, 110)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="exit code 1 where the file is not what this writes"
    )
    target = HERE / "tables.md"
    if parser.parse_args().check:
        return int(target.read_text() != text())
    target.write_text(text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
