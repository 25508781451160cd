"""Runs lm-evaluation-harness over the tasks of a folder, once for each way of
asking, and prints one line of JSON for each: what every document scored and the
tasks' metrics. No network but the base URL: the tokenizer is the endpoint's."""

import json
import os
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")

import lm_eval  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402


def run(url, tasks_dir, way):
    manager = TaskManager(include_path=tasks_dir, include_defaults=False)
    args = {
        "base_url": url + "/v1/completions",
        "model": "penstock-local",
        "tokenizer_backend": "remote",
        "tokenized_requests": way["tokenized"],
        "num_concurrent": way["concurrent"],
        "max_length": way["max_length"],
    }
    out = lm_eval.simple_evaluate(
        model="local-completions", model_args=args, tasks=way["tasks"], task_manager=manager,
        batch_size=way["batch"], bootstrap_iters=0, log_samples=True,
    )
    samples = {}
    for task, docs in out["samples"].items():
        docs = sorted(docs, key=lambda d: d["doc_id"])
        # A log-likelihood, or one with "it is what greedy decoding gives" for each choice.
        samples[task] = [[as_pair(r) for r in d["filtered_resps"]] for d in docs]
    results = {t: {k: v for k, v in r.items() if isinstance(v, float)} for t, r in out["results"].items()}
    return {"samples": samples, "results": results}


def as_pair(r):
    value, greedy = r if isinstance(r, (list, tuple)) else (r, None)
    return {"loglikelihood": float(value), "greedy": None if greedy is None else str(greedy) == "True"}


def main():
    url, tasks_dir, ways = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    sys.stdout, report = sys.stderr, sys.stdout  # the harness prints as it likes
    for way in ways:
        line = run(url, tasks_dir, way)
        line["compensated"] = sys.version_info >= (3, 12)  # how sum() adds floats
        print(json.dumps(line), file=report, flush=True)


main()
