#!/usr/bin/env bash
# What `auto` takes on each mobile device, compiled by Mesa's drivers and compared with benchmarks/results: all.sh FOLDER
set -uo pipefail
here=$(dirname "$(realpath "$0")") failed=()
for device in adreno-640 adreno-650 adreno-740 adreno-750 mali-g52 mali-g610 videocore-4.2 videocore-7.1; do
  echo "== $device"
  "$here/run.sh" "$1" $device "$here/stats.py" --compare "$here/../../benchmarks/results/compiled-$device.json" ||
    failed+=($device)
done
[ ${#failed[@]} = 0 ] || { echo "worse than what is kept, or failed: ${failed[*]}"; exit 1; }
