#!/usr/bin/env bash
# Installs PyTorch's CPU build. The default Linux wheels need gigabytes of CUDA libraries, so the
# build without CUDA is tried first: from the indexes that pip knows, then from PyTorch's own index.
# Usage: tools/install_torch.sh PYTHON VERSION
set -euo pipefail
python=$1 version=$2

if "$python" -c "
from importlib.metadata import version
raise SystemExit(version('torch').split('+')[0] != '$version')" 2>/dev/null; then
  exit 0
fi
pip=("$python" -m pip install -q --disable-pip-version-check)
"${pip[@]}" "torch==$version+cpu" 2>/dev/null && exit 0
"${pip[@]}" --extra-index-url https://download.pytorch.org/whl/cpu "torch==$version+cpu" \
  2>/dev/null && exit 0
echo "no CPU build of torch $version found; installing the default build" >&2
"${pip[@]}" "torch==$version"
