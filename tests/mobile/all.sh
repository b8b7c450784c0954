#!/usr/bin/env bash
# all.sh FOLDER: for each mobile device, compiles the kernels that vkq chooses by default with Mesa's driver, and compares
# the compiler's statistics with benchmarks/results. FOLDER is the arm64 Debian that setup.sh makes.
set -uo pipefail
here=$(dirname "$(realpath "$0")") failed=()
for device in adreno-640 adreno-650 adreno-740 adreno-750 mali-g52 mali-g610 videocore-4.2 videocore-7.1; do
  echo "== $device"
  "$here/run.sh" "$1" $device "$here/stats.py" --compare "$here/../../benchmarks/results/compiled-$device.json" ||
    failed+=($device)
done
[ ${#failed[@]} = 0 ] || { echo "failed, or statistics worse than the stored ones: ${failed[*]}"; exit 1; }
