#!/usr/bin/env bash
# Builds the static libcrypto and libssl that wheels contain, for build images without OpenSSL 3.
# Usage: tools/build_openssl.sh PREFIX [TARBALL]. Without TARBALL, the sources are downloaded.
set -euo pipefail

version=3.0.22
sum=67ebca7e50d17383028045486653492195b83db95f8558709701bb47b5c1ef81
prefix=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

tarball=${2:-$work/openssl.tar.gz}
[ -n "${2:-}" ] || curl -fsSL -o "$tarball" \
  "https://github.com/openssl/openssl/releases/download/openssl-$version/openssl-$version.tar.gz"
echo "$sum  $tarball" | sha256sum --check --quiet
tar -xzf "$tarball" -C "$work" --strip-components=1 --no-same-owner

cd "$work"
./Configure no-shared no-module no-engine no-tests -fPIC > configure.log
make -s -j "$(nproc)" build_generated libcrypto.a libssl.a > make.log 2>&1 \
  || { tail -20 make.log; exit 1; }
mkdir -p "$prefix/include" "$prefix/lib"
cp -r include/openssl "$prefix/include/"
cp libcrypto.a libssl.a "$prefix/lib/"
echo "OpenSSL $version in $prefix"
