#!/usr/bin/env bash
# The four phases of the seed rows on an engine with the pace of the deployment
# that they were measured on, direct and through the gateway in turn; then 929
# requests at once on one that runs 64 a rank, with a queue that lets all of them
# wait and with one that does not. Takes about half an hour.
#
#   seeds.sh PENSTOCK OUT_FOLDER
set -euo pipefail
penstock=$1 out=$2
port=$((20000 + RANDOM % 20000))
engine=127.0.0.1:$port gateway=127.0.0.1:$((port + 1)) admin=127.0.0.1:$((port + 2))
pids=()
stop() { # stop: end what was started, and wait for it
  ((${#pids[@]})) && kill "${pids[@]}" 2>/dev/null && wait "${pids[@]}" 2>/dev/null || true
  pids=()
}
trap stop EXIT

start() { # start NAME ENGINE_FLAGS CONFIG: an engine, and a gateway in front of it
  # shellcheck disable=SC2086 # the flags are several words
  "$penstock" engine --listen $engine --profile glm52-dp4 --dp 4 $2 2>"$out/$1-engine.log" &
  pids+=($!)
  wait_for http://$engine/health
  printf 'listen: %s\nadmin: {listen: %s}\n%s\n' "$gateway" "$admin" "$3" >"$out/$1.yaml"
  "$penstock" serve --config "$out/$1.yaml" 2>"$out/$1-gateway.log" &
  pids+=($!)
  wait_for http://$admin/readyz
}

wait_for() { # wait_for URL: until it answers
  for _ in $(seq 300); do
    curl -fs -o /dev/null "$1" && return
    sleep 0.1
  done
  echo "$1 does not answer" >&2
  exit 1
}

echo "== the four phases"
start seeds "" "models: [{engines: [{url: 'http://$engine', kind: sglang}]}]"
"$penstock" bench --endpoint direct=http://$engine --endpoint gateway=http://$gateway \
  --phase single,decode_medium,decode_long --runs 3 --out "$out/seeds-short.json"
"$penstock" bench --endpoint direct=http://$engine --endpoint gateway=http://$gateway \
  --phase throughput_8k --out "$out/seeds-long.json"
stop

echo "== 929 at once, 64 running a rank, limits.mode auto, 30 minutes of waiting"
start all-wait "--max-running 64" "limits: {mode: auto}
models: [{engines: [{url: 'http://$engine', kind: sglang}], queue: {max_wait: 30m}}]"
"$penstock" bench --endpoint gateway=http://$gateway --phase throughput_8k --silence 35m --timeout 60m \
  --out "$out/929-auto.json" --assert completed==929 --assert errors==0 --assert hung==0
stop

echo "== 929 at once, 64 running a rank, a queue of 400 and 20 seconds"
start few-wait "--max-running 64" "models: [{engines: [{url: 'http://$engine', kind: sglang}], queue: {max_length: 400, max_wait: 20s}}]"
"$penstock" bench --endpoint gateway=http://$gateway --phase throughput_8k --silence 35m --timeout 60m \
  --out "$out/929-queue.json" --assert hung==0
stop
