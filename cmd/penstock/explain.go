package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"penstock/router"
)

func newExplainCmd(e *env) *cobra.Command {
	admin, asJSON := defaultAdmin, false
	cmd := &cobra.Command{
		Use:   "explain REQUEST_ID",
		Short: "Say why a recent request went where it did, and what came of it",
		Long: `Say why one of the gateway's last 1000 requests was sent where it was, how long
it waited, what else was considered, and what came of it. REQUEST_ID is the
answer's x-request-id; "last" is the last request, "failed" the last that failed.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			base, err := adminURL(cmd, admin)
			if err != nil {
				return err
			}
			raw, err := findRequest(cmd.Context(), base, args[0])
			if err != nil {
				return err
			}
			if asJSON {
				_, err = e.stdout.Write(raw)
				return err
			}
			var x explained
			if err := json.Unmarshal(raw, &x); err != nil {
				return fmt.Errorf("%s did not answer as a Penstock: %w", base, err)
			}
			return x.write(e.stdout)
		},
	}
	cmd.Flags().StringVar(&admin, "admin", admin, "the gateway's admin listener")
	cmd.Flags().BoolVar(&asJSON, "json", false, "write the answer of GET /requests/REQUEST_ID as it is")
	return cmd
}

// findRequest asks the gateway for a request, or for its last one.
func findRequest(ctx context.Context, base, id string) ([]byte, error) {
	list := map[string]string{"last": "/requests", "failed": "/requests?errors=1"}[id]
	if list == "" {
		return ask(ctx, base+"/requests/"+url.PathEscape(id))
	}
	raw, err := ask(ctx, base+list)
	if err != nil {
		return nil, err
	}
	var all []json.RawMessage
	if err := json.Unmarshal(raw, &all); err != nil {
		return nil, fmt.Errorf("%s did not answer as a Penstock: %w", base, err)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s remembers no such request", base)
	}
	var x struct{ ID string }
	if err := json.Unmarshal(all[0], &x); err != nil {
		return nil, err
	}
	return ask(ctx, base+"/requests/"+url.PathEscape(x.ID))
}

// ask reads a path of the admin listener.
func ask(ctx context.Context, url string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 8<<20))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusOK {
		return text, nil
	}
	var e struct{ Error struct{ Message string } }
	if json.Unmarshal(text, &e) == nil && e.Error.Message != "" {
		return nil, fmt.Errorf("%s", strings.TrimSuffix(e.Error.Message, "."))
	}
	return nil, fmt.Errorf("%s answered %d", url, resp.StatusCode)
}

// explained is a request as GET /requests/{id} tells it.
type explained struct {
	ID           string              `json:"id"`
	Time         time.Time           `json:"time"`
	Path         string              `json:"path"`
	Key          string              `json:"key"`
	Model        string              `json:"model"`
	Lane         string              `json:"lane"`
	Status       int                 `json:"status"`
	Code         string              `json:"code"`
	Outcome      string              `json:"outcome"`
	Message      string              `json:"message"`
	Advice       string              `json:"advice"`
	Replica      string              `json:"replica"`
	Matched      int                 `json:"matched_tokens"`
	Best         int                 `json:"best_matched_tokens"`
	Uncached     int                 `json:"uncached_tokens"`
	CostMS       float64             `json:"cost_ms"`
	Candidates   []router.Considered `json:"candidates"`
	Retries      []string            `json:"retries"`
	Attempts     []string            `json:"attempt_ids"`
	TraceID      string              `json:"trace_id"`
	QueueMS      float64             `json:"queue_ms"`
	FirstTokenMS float64             `json:"first_token_ms"`
	TotalMS      float64             `json:"total_ms"`
	EstimatedIn  int                 `json:"estimated_input_tokens"`
	ReservedOut  int                 `json:"reserved_output_tokens"`
	Prompt       int                 `json:"prompt_tokens"`
	Cached       int                 `json:"cached_tokens"`
	Completion   int                 `json:"completion_tokens"`
	Streamed     bool                `json:"streamed"`
}

// write writes the request in words and a table.
func (x *explained) write(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "%s: %s after %s\n\n", x.ID, x.ended(), millis(x.TotalMS))
	row := func(name, format string, args ...any) {
		fmt.Fprintf(t, "  %s\t%s\n", name, fmt.Sprintf(format, args...))
	}
	row("came", "%s, %s%s", x.Time.Local().Format("2006-01-02 15:04:05.000 MST"), x.path(), map[bool]string{true: ", streamed"}[x.Streamed])
	if x.Key != "" || x.Model != "" {
		row("who", "key %s, model %s%s", cmp.Or(x.Key, "unknown"), cmp.Or(x.Model, "unknown"), map[string]string{"score": ", for the log-probabilities of its prompt", "embed": ", to be embedded or ranked"}[x.Lane])
	}
	if x.EstimatedIn > 0 {
		row("reserved", "%s prompt tokens (estimated) and %s of output", count(x.EstimatedIn), count(x.ReservedOut))
	}
	if x.Model != "" {
		row("waited", "%s for room on a replica", millis(x.QueueMS))
	}
	for i, r := range x.Retries {
		row("tried", "%s%s", r, attemptID(x.Attempts, i))
	}
	if x.Replica != "" {
		row("sent to", "%s%s", x.Replica, attemptID(x.Attempts, len(x.Attempts)-1))
	}
	if x.FirstTokenMS > 0 {
		row("first token", "after %s, waiting included", millis(x.FirstTokenMS))
	}
	switch {
	case x.Prompt == 0 && x.Completion > 0: // its end, which tells, never came
		row("used", "%s of output, by the events that came; the engine did not tell the prompt's tokens", count(x.Completion))
	case x.Prompt > 0:
		row("used", "%s prompt tokens, %s of them from the engine's cache; %s of output", count(x.Prompt), count(x.Cached), count(x.Completion))
	}
	if x.TraceID != "" {
		row("trace", "%s", x.TraceID)
	}
	if x.Message != "" {
		row("told", "%s", x.Message)
	}
	if x.Advice != "" {
		row("to do", "%s", x.Advice)
	}
	x.why(t)
	return t.Flush()
}

// ended is what came of the request.
func (x *explained) ended() string {
	what := map[string]string{"left": "the client left", "failed": "failed", "rejected": "rejected by the engine", "refused": "refused"}[x.Outcome]
	if what == "" {
		return fmt.Sprintf("answered with %d", x.Status)
	}
	if x.Code != "" && x.Code != "upstream" {
		return fmt.Sprintf("%s, %d %s,", what, x.Status, x.Code)
	}
	return fmt.Sprintf("%s, %d,", what, x.Status)
}

func (x *explained) path() string { return cmp.Or(x.Path, "a path that is not known here") }

// why is the decision: the candidates at the moment of the choice.
func (x *explained) why(w io.Writer) {
	if x.Replica == "" {
		return
	}
	fmt.Fprintf(w, "\nWhy %s\n", x.Replica)
	switch {
	case x.Lane == "score":
		fmt.Fprintf(w, "  Requests for log-probabilities never read a prefix cache: they go where the fewest of their tokens are.\n")
	case x.Lane == "embed":
		fmt.Fprintf(w, "  Nothing of such a request is cached: it goes where it is computed soonest.\n")
	case x.Best == 0:
		fmt.Fprintf(w, "  No replica was expected to hold any of its prompt.\n")
	case x.Matched == x.Best:
		fmt.Fprintf(w, "  It was expected to hold %s tokens of the prompt, as many as any; %s were to be computed.\n", count(x.Matched), count(x.Uncached))
	default:
		fmt.Fprintf(w, "  It was expected to hold %s tokens of the prompt. Another held %s, but with its queue it would have taken longer, or had no room.\n", count(x.Matched), count(x.Best))
	}
	if len(x.Candidates) == 0 {
		return
	}
	fmt.Fprintf(w, "\n  \tREPLICA\tMATCHED\tTO COMPUTE\tQUEUED THERE\tWAITING\tIN FLIGHT\tTOKENS/S\tCOST\n")
	all := slices.Clone(x.Candidates)
	slices.SortStableFunc(all, func(a, b router.Considered) int { return cmp.Compare(a.Cost, b.Cost) })
	for _, c := range all {
		mark := ""
		if c.Replica == x.Replica {
			mark = ">"
		}
		fmt.Fprintf(w, "  %s\t%s\t%s\t%s\t%s\t%d\t%d\t%s\t%s\n", mark, c.Replica, count(c.Matched), count(c.Uncached), count(c.Queued), c.Waiting, c.InFlight, count(int(c.Rate)), millis(c.Cost*1000))
	}
	fmt.Fprintf(w, "\n  The tokens are estimates at the moment of the choice. Replicas without room are left out; the least cost\n  is chosen (docs/routing.md), by policies other than prefix without a price.\n")
}

// attemptID is how the engine knows the attempt.
func attemptID(ids []string, i int) string {
	if i < 0 || i >= len(ids) {
		return ""
	}
	return " (attempt " + ids[i] + ")"
}

// count is a number with its thousands apart.
func count(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func millis(ms float64) string {
	switch {
	case ms < 10:
		return fmt.Sprintf("%.2f ms", ms)
	case ms < 1000:
		return fmt.Sprintf("%.0f ms", ms)
	}
	return fmt.Sprintf("%.2f s", ms/1000)
}
