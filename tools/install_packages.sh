#!/bin/bash
# Installs Debian's packages that tests use, as far as they are missing: chromium opens the pages that weir writes, nft drops
# frames between pretended hosts, clang compiles the kernel programs, strace lets system calls fail.
set -euo pipefail

missing=()
if ! command -v chromium >/dev/null && ! command -v chromium-browser >/dev/null && ! command -v google-chrome >/dev/null; then
    missing+=(chromium)
fi
if ! PATH=$PATH:/usr/sbin command -v nft >/dev/null; then
    missing+=(nftables)
fi
if ! command -v clang >/dev/null; then
    missing+=(clang)
fi
if ! command -v strace >/dev/null; then
    missing+=(strace)
fi
if [ "${#missing[@]}" = 0 ]; then
    exit 0
fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing Debian's ${missing[*]}"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
else
    echo "not installed, so some tests are skipped: apt-get install ${missing[*]}"
fi
