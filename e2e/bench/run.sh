#!/usr/bin/env bash
# Side by side: builds the gateway and the bench, installs what it is compared
# with, runs it, and leaves all measurements in .e2e/bench.
#
#   run.sh [flags of the bench]        direct, nginx, HAProxy, penstock with everything on and bare
#   run.sh peers [flags of the bench]  the routers from PyPI too, over two upstreams
#   run.sh seeds                       the four seed phases and 929 requests at once, on a timed engine
set -euo pipefail
cd "$(dirname "$0")/../.."
out=$PWD/.e2e/bench
mkdir -p "$out"

missing=()
for p in nginx haproxy; do
  PATH=$PATH:/usr/sbin command -v $p >/dev/null || missing+=($p)
done
if ((${#missing[@]})); then
  export DEBIAN_FRONTEND=noninteractive
  apt-get -qq update
  apt-get -qq install -y --no-install-recommends "${missing[@]}" >/dev/null
fi
CGO_ENABLED=0 go build -trimpath -o "$out/penstock" ./cmd/penstock
go build -o "$out/bench" ./e2e/bench

peers() { # peers: install each router into an environment of its own
  local spec name
  for spec in sglang-router==0.3.2 smg==1.13.0 vllm-router==0.1.17; do
    name=${spec%%=*}
    [[ -x $out/$name/bin/$name ]] && continue
    python3 -m venv "$out/$name"
    "$out/$name/bin/pip" install -q --disable-pip-version-check "$spec"
  done
}

case ${1:-} in
peers)
  shift
  peers
  exec "$out/bench" -penstock "$out/penstock" -peers "$out" -targets nginx,haproxy,penstock,sglang-router,smg,vllm-router \
    -cases json,sse,32k,400k,1000x20,2000x5 -out "$out/peers.json" "$@"
  ;;
seeds)
  exec e2e/bench/seeds.sh "$out/penstock" "$out"
  ;;
*)
  exec "$out/bench" -penstock "$out/penstock" -out "$out/proxies.json" "$@"
  ;;
esac
