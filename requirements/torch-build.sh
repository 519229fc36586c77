#!/bin/sh
# Which build of PyTorch this machine takes. `make install` runs it.
# The message goes to standard error. Standard output is the package index of the CUDA build, or
# nothing if the build of requirements/lock.txt is enough. The version is always that of the lock.
CUDA_INDEX="${CUDA_INDEX:-https://download.pytorch.org/whl/cu130}"
NEEDED_DRIVER=580  # the first driver that runs programs of CUDA 13.0

if ! command -v nvidia-smi >/dev/null 2>&1; then
  echo "No NVIDIA GPU (no nvidia-smi): PyTorch as in requirements/lock.txt." >&2
  exit 0
fi
driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1)
major=${driver%%.*}
case "$major" in
  '' | *[!0-9]*)
    echo "nvidia-smi finds no GPU: PyTorch as in requirements/lock.txt." >&2
    exit 0
    ;;
esac
if [ "$major" -lt "$NEEDED_DRIVER" ]; then
  echo "This machine has an NVIDIA GPU, but its driver $driver is older than $NEEDED_DRIVER: PyTorch as in requirements/lock.txt. Update the driver, then run make clean install." >&2
  exit 0
fi
echo "This machine has an NVIDIA GPU (driver $driver): PyTorch's CUDA build from $CUDA_INDEX." >&2
echo "$CUDA_INDEX"
