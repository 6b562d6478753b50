#!/bin/bash
# Installs Debian's chromium, unless a browser is installed. Tests open the pages that weir writes with it.
set -euo pipefail

if command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null; then
    exit 0
fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing Debian's chromium"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null
else
    echo "chromium is not installed: tests/mpi/test_pages.py is skipped (apt-get install chromium)"
fi
