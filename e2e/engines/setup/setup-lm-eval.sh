#!/bin/bash
# setup-lm-eval.sh VENV: lm-evaluation-harness 0.4.13 for API models, without torch: 950 MB.
set -euo pipefail
V=$1
python3 -m venv "$V"
"$V/bin/pip" install -q --disable-pip-version-check 'lm-eval[api]==0.4.13' transformers
