// Package engines tests Penstock with real engines: vLLM and, where it is
// installed, SGLang, on the CPU with a tiny model of random weights that is
// made on the spot. Its tests run under PENSTOCK_ENGINES=1 only (make
// e2e-engines): setting up takes gigabytes and minutes.
//
// Environment: VLLM and SGLANG name the virtual environments to use, LM_EVAL and
// GUIDELLM the commands of lm-evaluation-harness and guidellm, ROUTERS a folder
// with the environments of the routers that Penstock is compared with. What is
// not given is set up under .engines/, but SGLang, whose tests are skipped.
// setup/ has the scripts that make them and the model.
//
// The parts: engines_test.go (all that two replicas and two ranks can show),
// clients_test.go (bench and eval clients), routing_test.go and
// workload_test.go (recorded sessions over four replicas, side by side with
// other routers), setup_test.go.
package engines
