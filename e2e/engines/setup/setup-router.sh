#!/bin/bash
# setup-router.sh VENV PACKAGE==VERSION: another router, to compare with.
set -euo pipefail
V=$1
python3 -m venv "$V"
"$V/bin/pip" install -q --disable-pip-version-check "$2"
