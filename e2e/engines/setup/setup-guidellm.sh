#!/bin/bash
# setup-guidellm.sh VENV: guidellm 0.8.1 with a torch that computes nothing: 2 GB.
set -euo pipefail
V=$1; H=$(dirname "$(readlink -f "$0")")
python3 -m venv "$V"
"$V/bin/pip" install -q --disable-pip-version-check uv
"$V/bin/uv" pip install -q --no-cache --python "$V/bin/python" --overrides "$H/guidellm-overrides.txt" guidellm==0.8.1 nvidia-cuda-runtime
"$V/bin/python" "$H/mkstubs.py"
