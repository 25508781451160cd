package main

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// initPlan is what init writes.
type initPlan struct {
	listen, admin, output string
	models                []plannedModel
	clients               []client
}

type plannedModel struct {
	name    string // empty: what the engines serve
	engines []probed
}

// client is a name with a new key; only the hash is written.
type client struct{ name, key, sha256 string }

func newClient(name string) client {
	key := "sk-" + strings.ToLower(rand.Text())
	sum := sha256.Sum256([]byte(key))
	return client{name: name, key: key, sha256: hex.EncodeToString(sum[:])}
}

// group puts engines of one model together. With a name given, all are one
// model; those that told no model join the only one that was told, or stay
// without a name.
func (p *initPlan) group(found []probed, name string) {
	told := map[string]bool{}
	for _, f := range found {
		told[f.model] = true
	}
	delete(told, "")
	at := map[string]int{}
	for _, f := range found {
		model := f.model
		switch {
		case name != "":
			model = name
		case model == "" && len(told) == 1:
			for only := range told {
				model = only
			}
		}
		i, ok := at[model]
		if !ok {
			i = len(p.models)
			at[model] = i
			p.models = append(p.models, plannedModel{name: model})
		}
		p.models[i].engines = append(p.models[i].engines, f)
	}
	if len(found) == 0 {
		p.models = []plannedModel{{name: name}}
	}
}

const initHeader = `# Penstock's configuration. Every key is in docs/configuration.md; what is left
# out has its default. Check it:  penstock check --config %s
# Run it:                         penstock serve --config %s

# Where clients connect: base_url http://%s/v1
listen: %s

# For operators: /metrics, /replicas, the status page. Keep it off the network,
# or give it a key: admin: {listen: ..., key: "${PENSTOCK_ADMIN_KEY}"}
admin:
  listen: %s

# What clients ask for, and the engines behind it.
models:
`

func (p *initPlan) write(w io.Writer) {
	file := p.output
	if file == "-" {
		file = "FILE"
	}
	fmt.Fprintf(w, initHeader, file, file, p.listen, scalar(p.listen), scalar(p.admin))
	for _, m := range p.models {
		p.writeModel(w, m)
	}
	p.writeClients(w)
	fmt.Fprint(w, `
# Deadlines. A pod's grace period must exceed drain.
timeouts:
  first_token: 10m # until a stream's first event
  idle: 5m # between two events
  request: 60m # the whole request
  drain: 25s # for running streams after SIGTERM

# One line for each request, on stderr.
log:
  format: text # or json
`)
}

func (p *initPlan) writeModel(w io.Writer, m plannedModel) {
	if len(m.engines) == 0 {
		name := m.name
		if name == "" {
			name = "penstock-local"
		}
		fmt.Fprintf(w, `  - name: %s
    engines:
      # The embedded engine: a small language model, for trials and tests.
      - local:
          replicas: 4
          profile: instant # or qwen3-30b, glm52-dp4: as slow as those were measured
`, scalar(name))
	} else {
		p.writeEngines(w, m)
	}
	fmt.Fprint(w, `    # prefix: the replica that holds the longest part of the prompt, priced
    # against its load. Others: least_load, round_robin, random_two, session.
    policy: prefix
    # Requests for which no replica has room wait here.
    queue:
      max_length: 1000
      max_wait: 30s
`)
}

func (p *initPlan) writeEngines(w io.Writer, m plannedModel) {
	indent := "    "
	if m.name != "" {
		fmt.Fprintf(w, "  - name: %s\n", scalar(m.name))
	} else {
		fmt.Fprint(w, "  - # no name: it is called what the engines call it\n")
	}
	if u := m.upstream(); u != "" {
		fmt.Fprintf(w, "%supstream: %s # the engines' own name for it\n", indent, scalar(u))
	}
	fmt.Fprintf(w, "%sengines:\n", indent)
	for _, e := range m.engines {
		fmt.Fprintf(w, "%s  # %s\n%s  - url: %s\n", indent, e.describe(), indent, scalar(e.url))
		if e.kind == "vllm" && e.running == 0 {
			fmt.Fprintf(w, "%s    # max_running: 256 # vLLM does not tell its --max-num-seqs; it is learned without this\n", indent)
		}
	}
}

// upstream is the engines' name where clients use another one.
func (m plannedModel) upstream() string {
	for _, e := range m.engines {
		if e.model != "" && e.model != m.name {
			return e.model
		}
	}
	return ""
}

func (p *initPlan) writeClients(w io.Writer) {
	if len(p.clients) == 0 {
		fmt.Fprintf(w, `
# Clients' keys. None: anybody who reaches the listener may send requests.
# keys:
#   - name: search-team # what logs and metrics show
#     key: ${SEARCH_TEAM_KEY} # or sha256: printf %%s "$KEY" | sha256sum
#     limits: {requests_per_minute: 600, tokens_per_minute: 200000, concurrency: 64}
`)
		return
	}
	fmt.Fprint(w, "\n# Clients' keys, by their hashes. Another way: key: ${NAME_IN_THE_ENVIRONMENT}\nkeys:\n")
	for _, c := range p.clients {
		fmt.Fprintf(w, `  - name: %s
    sha256: %s
    # limits: {requests_per_minute: 600, tokens_per_minute: 200000, concurrency: 64}
`, scalar(c.name), c.sha256)
	}
}

// sayNext prints the keys, which are nowhere else, and what to do now.
func (p *initPlan) sayNext(w io.Writer, output string) {
	for _, c := range p.clients {
		fmt.Fprintf(w, "The key of %s, shown this once: %s\n", c.name, c.key)
	}
	if output != "-" {
		fmt.Fprintf(w, "Wrote %s. Next: penstock serve --config %s\n", output, output)
	}
}

// scalar writes text as YAML: plain where that is safe, else quoted.
func scalar(s string) string {
	plain := s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("./:_-", r))
	})
	letter := plain && (s[0] >= 'a' && s[0] <= 'z' || s[0] >= 'A' && s[0] <= 'Z' || strings.Count(s, ".") == 3)
	switch strings.ToLower(s) {
	case "true", "false", "null", "yes", "no", "on", "off":
		letter = false
	}
	if letter && !strings.HasSuffix(s, ":") {
		return s
	}
	return strings.ReplaceAll(strconv.Quote(s), "${", "$${")
}
