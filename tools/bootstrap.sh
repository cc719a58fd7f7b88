#!/usr/bin/env bash
# Makes sure that the system packages for the build are installed. Installs missing packages with
# apt-get if it may (as root, or with a sudo that asks for no password), and otherwise names them in
# one line. Usage: tools/bootstrap.sh [build] [test] [cross] [peers]
set -euo pipefail

missing=()
need() {  # need PACKAGE COMMAND...: PACKAGE is missing unless COMMAND succeeds
  local package=$1
  shift
  "$@" >/dev/null 2>&1 || missing+=("$package")
}
has_header() {
  echo "#include <$1>" | "${CXX:-g++}" -x c++ -E -o /dev/null -
}

python=${PYTHON:-python3}
if ! command -v "$python" >/dev/null; then
  missing+=(python3 python3-venv python3-dev)
else
  if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "error: $python is $("$python" --version 2>&1), but Herring needs Python 3.11 or newer" >&2
    exit 1
  fi
  if [ ! -x .venv/bin/python ]; then
    need python3-venv "$python" -c 'import ensurepip, venv'
  fi
  need python3-dev "$python" -c 'import os, sysconfig
os.stat(os.path.join(sysconfig.get_path("include"), "Python.h"))'
fi
if ! command -v "${CXX:-g++}" >/dev/null; then
  missing+=(g++)
  # Without a compiler, headers cannot be probed. Installing a package again does no harm.
  [ -e /usr/include/openssl/evp.h ] || missing+=(libssl-dev)
  [[ " $* " != *" test "* ]] || [ -e /usr/include/gtest/gtest.h ] || missing+=(libgtest-dev)
else
  need libssl-dev has_header openssl/evp.h
  [[ " $* " != *" test "* ]] || need libgtest-dev has_header gtest/gtest.h
fi
[[ " $* " != *" cross "* ]] || need g++-aarch64-linux-gnu command -v aarch64-linux-gnu-g++
if [[ " $* " == *" peers "* ]]; then
  need libopenmpi-dev command -v mpicxx.openmpi
  need openmpi-bin command -v mpirun.openmpi
fi
[ ${#missing[@]} -gt 0 ] || exit 0

command="apt-get install -y --no-install-recommends ${missing[*]}"
as_root=(env)
if [ "$(id -u)" -ne 0 ]; then
  as_root=(sudo -n env)
  if ! command -v sudo >/dev/null || ! sudo -n true 2>/dev/null; then
    echo "error: missing: ${missing[*]}; install with: sudo $command" >&2
    exit 1
  fi
fi
if ! command -v apt-get >/dev/null; then
  echo "error: missing (Debian's names): ${missing[*]}; install them with this system's tool" >&2
  exit 1
fi
echo "installing from Debian: ${missing[*]}"
as_root+=(DEBIAN_FRONTEND=noninteractive)
# Tries without `apt-get update` first: only a new machine has no package lists.
# shellcheck disable=SC2086
if ! "${as_root[@]}" $command >/dev/null 2>&1; then
  if ! { "${as_root[@]}" apt-get update -q && "${as_root[@]}" $command; } >/tmp/herring-apt.$$ 2>&1
  then
    tail -5 /tmp/herring-apt.$$ >&2
    rm -f /tmp/herring-apt.$$
    echo "error: missing: ${missing[*]}; install with: sudo $command" >&2
    exit 1
  fi
  rm -f /tmp/herring-apt.$$
fi
