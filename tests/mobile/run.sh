#!/usr/bin/env bash
# run.sh FOLDER DEVICE ARGUMENTS...: runs the Python of the arm64 Debian in FOLDER (setup.sh) with an emulated GPU device.
set -euo pipefail
root=$(realpath "$1") device=$2 source=$(dirname "$(realpath "$0")")/../..
shift 2
more=()
case $device in
  adreno-640) node=msm:06040000 driver=freedreno compatible=qcom,adreno ;;
  adreno-650) node=msm:06050000 driver=freedreno compatible=qcom,adreno ;;
  adreno-740) node=msm:43050a01 driver=freedreno compatible=qcom,adreno ;;
  adreno-750) node=msm:43051401 driver=freedreno compatible=qcom,adreno ;;
  videocore-4.2) node=v3d:42 driver=broadcom compatible=brcm,2711-v3d ;;
  videocore-7.1) node=v3d:71 driver=broadcom compatible=brcm,2712-v3d ;;
  mali-g52)  # without these variables, Mesa 25.0's panvk offers only Vulkan 1.0
    node=panfrost:7212 driver=panfrost compatible=arm,mali-bifrost
    more=(-E PAN_I_WANT_A_BROKEN_VULKAN_DRIVER=1 -E MESA_VK_VERSION_OVERRIDE=1.1) ;;
  mali-g610) node=panthor:a867 driver=panfrost compatible=arm,mali-valhall-csf ;;
  *) echo "unknown device $device"; exit 2 ;;
esac
[ $driver != panfrost ] || more+=(-E BIFROST_MESA_DEBUG=shaderdb)  # panvk prints its statistics
printf 'OF_FULLNAME=/soc/gpu\nOF_COMPATIBLE_0=%s\nOF_COMPATIBLE_N=1\n' "$compatible" >"$root/sys/devices/gpu/uevent"
exec qemu-aarch64-static -L "$root" -E LD_PRELOAD=/render_node.so -E RENDER_NODE="$node" \
  -E VK_DRIVER_FILES="/usr/share/vulkan/icd.d/${driver}_icd.json" -E MESA_SHADER_CACHE_DISABLE=true "${more[@]}" \
  -E PYTHONPATH="$(realpath "$source"):$root/site" "$root/usr/bin/python3.11" "$@"
