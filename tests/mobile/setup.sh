#!/usr/bin/env bash
# setup.sh FOLDER PYTHON: makes an arm64 Debian in FOLDER, with Mesa's drivers for Adreno, Mali and VideoCore, Python,
# vkq's dependencies, and the emulated render node. The script changes nothing on this machine outside FOLDER. run.sh runs
# programs of FOLDER under qemu-user. Needs qemu-user-static and mmdebstrap (apt-get install), but no kernel feature.
set -euo pipefail
root=$(realpath -m "$1") python=$2 here=$(dirname "$(realpath "$0")")
mirror=${MIRROR:-http://deb.debian.org/debian}
for tool in mmdebstrap qemu-aarch64-static; do
  command -v $tool >/dev/null || { echo "$tool is missing: apt-get install --no-install-recommends mmdebstrap qemu-user-static"; exit 1; }
done

if [ ! -e "$root/.complete" ] || [ ! -e "$root/usr/include/python3.11" ]; then  # made again if an earlier version of this script made it without headers
  rm -rf "$root"
  mkdir -p "$(dirname "$root")"
  # Mesa comes from backports: version 25.0 has panvk, and newer compilers than bookworm's Mesa
  mmdebstrap --quiet --arch=arm64 --variant=extract --aptopt='APT::Default-Release "bookworm-backports"' \
    --include=python3,libpython3.11-dev,mesa-vulkan-drivers,libvulkan1 bookworm "$root" \
    "deb $mirror bookworm main" "deb $mirror bookworm-backports main"
  wheels=(--quiet --target "$root/site" --python-version 3.11 --only-binary=:all:)
  for tag in manylinux_2_28 manylinux_2_17 manylinux2014; do wheels+=(--platform "${tag}_aarch64"); done
  "$python" -m pip install "${wheels[@]}" numpy pyyaml platformdirs
  touch "$root/.complete"
fi

# Compile the part of the extension that queries Vulkan. The part that computes (Kompute) is not needed here.
native=$here/../../vkq/runtime/native built=$root/site/native/_kompute.so
if [ ! -e "$built" ] || [ -n "$(find "$native" "$here/native.cpp" -newer "$built")" ]; then
  nanobind=$("$python" -c "import nanobind; print(nanobind.source_dir())")
  sources=("$here/native.cpp" "$nanobind/nb_combined.cpp")
  for name in bind_instance compiled gil instance restore; do sources+=("$native/$name.cpp"); done
  hash=$(PYTHONPATH=$here/../.. "$python" -c "from vkq.device import extension; print(extension._sources())")
  headers=$root/headers  # not /usr/include, which also has this machine's C library
  mkdir -p "$root/site/native" "$headers/aarch64-linux-gnu"
  for name in vulkan vk_video; do ln -sfn /usr/include/$name "$headers/$name"; done
  ln -sfn "$root/usr/include/aarch64-linux-gnu/python3.11" "$headers/aarch64-linux-gnu/python3.11"
  "$python" -m ziglang c++ -target aarch64-linux-gnu.2.36 -shared -fPIC -O1 -std=c++17 -fno-strict-aliasing -include cstdio \
    -DVKQ_BINDINGS_SHA256="\"$hash\"" -I "$native" -I "$headers" -I "$nanobind/../include" \
    -I "$nanobind/../ext/robin_map/include" -I "$root/usr/include/python3.11" "${sources[@]}" -o "$built"
fi

# Make the files that libdrm reads: two nodes in /dev/dri, and their entries in sysfs. v3dv needs a display node, too.
device() {  # name, minor, node, compatible
  local folder=$root/sys/devices/$1
  mkdir -p "$folder/drm/$3" "$root/sys/dev/char/226:$2" "$root/sys/bus/platform" "$root/dev/dri"
  ln -sfn ../../bus/platform "$folder/subsystem"
  ln -sfn "../../../devices/$1" "$root/sys/dev/char/226:$2/device"
  printf 'OF_FULLNAME=/soc/%s\nOF_COMPATIBLE_0=%s\nOF_COMPATIBLE_N=1\n' "$1" "$4" >"$folder/uevent"
  truncate -s 64G "$root/dev/dri/$3"  # a sparse file; the device's buffers are ranges of it
}
device gpu 128 renderD128 qcom,adreno
device vc4 0 card0 brcm,bcm2711-vc5

"$python" -m ziglang cc -target aarch64-linux-gnu.2.36 -shared -fPIC -O1 -Wall -Wextra -o "$root/render_node.so" "$here/render_node.c"
