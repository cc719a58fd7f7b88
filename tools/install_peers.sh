#!/usr/bin/env bash
# Builds Horovod from its source package, with Gloo and Open MPI for PyTorch on processors, and
# installs it into an environment that also sees everything in .venv. It stays out of .venv, because
# it is a library to compare with and takes minutes to compile.
# Usage: tools/install_peers.sh PYTHON ENVIRONMENT
set -euo pipefail
python=$1 environment=$2
version=0.28.1
source=build/peers/horovod-$version
cd "$(dirname "$0")/.."

[ -x "$environment/bin/python" ] || "$python" -m venv "$environment"
own=$("$environment/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
shared=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
echo "import site; site.addsitedir('$shared')" > "$own/herring_environment.pth"
# The command `herring`, run by this environment's Python.
sed "1s|.*|#!$PWD/$environment/bin/python|" .venv/bin/herring > "$environment/bin/herring"
chmod +x "$environment/bin/herring"

pip=("$environment/bin/python" -m pip install -q --disable-pip-version-check)
"${pip[@]}" setuptools wheel packaging cloudpickle psutil pyyaml cffi mpi4py
if [ ! -d "$source" ]; then
  mkdir -p build/peers
  "$environment/bin/python" -m pip download -q --disable-pip-version-check --no-deps \
    --no-build-isolation --no-binary horovod --dest build/peers "horovod==$version"
  tar -xzf "$source.tar.gz" -C build/peers
  # PyTorch's headers need C++17. Horovod asks for C++14 in these two files, and no option changes
  # that.
  sed -i 's/CMAKE_CXX_STANDARD 14/CMAKE_CXX_STANDARD 17/' \
    "$source/CMakeLists.txt" "$source/horovod/torch/CMakeLists.txt"
  # Horovod forgets HOROVOD_GLOO_IFACE when it connects its default process set, and takes the
  # host's name instead, which leads to no other host where names do not resolve.
  sed -i \
    '/::InitializeForProcessSet/,/CreateDevice/ s/= gloo_iface_/= global_context.gloo_iface_/' \
    "$source/horovod/common/gloo/gloo_context.cc"
fi
# CMake 4 refuses the version that Horovod's copy of Gloo names, unless the policy's variable is
# set.
if ! CMAKE_POLICY_VERSION_MINIMUM=3.5 MAKEFLAGS="-j${JOBS:-1}" \
  HOROVOD_WITH_GLOO=1 HOROVOD_WITH_MPI=1 HOROVOD_WITH_PYTORCH=1 \
  HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 \
  "${pip[@]}" -v --no-build-isolation --no-deps "./$source" > build/peers/horovod.log 2>&1; then
  grep -E 'error|Error' build/peers/horovod.log | head -20 >&2
  echo "error: Horovod cannot be built here (all of it: build/peers/horovod.log)" >&2
  exit 1
fi
"$environment/bin/python" -c '
import horovod, horovod.torch as built
print("Horovod", horovod.__version__, "Gloo", built.gloo_built(), "MPI", built.mpi_built())'
