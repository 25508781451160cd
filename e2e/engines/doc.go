// Package engines tests Penstock with real engines: vLLM and, where it is
// installed, SGLang, on the CPU with a tiny model of random weights that is
// made on the spot. Its tests run under PENSTOCK_ENGINES=1 only (make
// e2e-engines): setting up takes gigabytes and minutes.
//
// Environment: VLLM and SGLANG name the virtual environments to use and LM_EVAL
// the command of lm-evaluation-harness. vLLM and the harness are set up under
// .engines/ if they are not given; SGLang's tests are skipped.
// setup/ has the scripts that make them and the model.
package engines
