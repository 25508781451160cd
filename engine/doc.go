// Package engine is what stands behind the gateway: inference servers, found
// by their URLs, asked for everything else, watched, and handed out as
// replicas.
//
// Its parts, in reading order:
//
//   - fleet.go: Fleet, all replicas of all models; Apply takes a configuration
//   - source.go, dns.go, filesd.go, local.go, admin.go: where URLs come from
//   - launch.go, child.go, preflight.go, helptext.go, argparse.go: engines
//     started as child processes, after their flags were checked
//   - server.go: one URL; its life from first contact to removal
//   - replica.go: what a request is sent to: a URL, or one data-parallel rank of it
//   - event.go: what the fleet tells its one subscriber
//   - adapter.go, sglang.go, vllm.go, openai.go, localkind.go, promtext.go, lenient.go:
//     what each kind of engine is asked, and how its answers are read
//   - address.go, rankcheck.go: how a rank is told to an engine, and how one
//     that does not listen is found out
//   - health.go, poll.go, breaker.go: probes, load polls, circuit breakers
//   - client.go, tls.go, errors.go: HTTP for all of these; engines' error bodies
//
// A Fleet is safe for concurrent use. What a request needs (Usable, Allow,
// Address, Answering, Begin) is atomic and takes no lock of the fleet.
package engine
