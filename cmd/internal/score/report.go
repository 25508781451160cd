package score

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"text/tabwriter"
	"time"
)

// figures are what a text, or all of them, came to.
type figures struct {
	Document string `json:"document,omitempty"`
	Tokens   int    `json:"tokens"` // predicted
	Words    int    `json:"words"`
	Bytes    int    `json:"bytes"`
	// Loglikelihood is the sum of the natural logarithms of the tokens' probabilities.
	Loglikelihood   float64    `json:"loglikelihood"`
	NLL             float64    `json:"nll_per_token"`
	TokenPerplexity perplexity `json:"token_perplexity"`
	WordPerplexity  perplexity `json:"word_perplexity"`
	BytePerplexity  perplexity `json:"byte_perplexity"`
	BitsPerByte     float64    `json:"bits_per_byte"`
}

// perplexity may be beyond what a float64 holds, as of a word of a language that writes no spaces. JSON has null
// for that.
type perplexity float64

func (p perplexity) MarshalJSON() ([]byte, error) {
	if math.IsInf(float64(p), 0) {
		return []byte("null"), nil
	}
	return json.Marshal(float64(p))
}

// add adds a document's windows, in their order: the same sums in every run.
func (f *figures) add(d *document) {
	sum := 0.0
	for _, r := range d.results {
		sum += r.sum
		f.Tokens += r.tokens
	}
	f.Loglikelihood += sum
	f.Words += d.words
	f.Bytes += len(d.text)
}

func (f *figures) finish() {
	if f.Tokens == 0 {
		return
	}
	f.NLL = -f.Loglikelihood / float64(f.Tokens)
	f.TokenPerplexity = perplexity(math.Exp(f.NLL))
	f.WordPerplexity = perplexity(math.Exp(-f.Loglikelihood / float64(f.Words)))
	f.BytePerplexity = perplexity(math.Exp(-f.Loglikelihood / float64(f.Bytes)))
	f.BitsPerByte = -f.Loglikelihood / float64(f.Bytes) / math.Ln2
}

// Report is what --json writes.
type Report struct {
	Model    string `json:"model"`
	Endpoint string `json:"endpoint"`
	Window   int    `json:"window"`
	Context  int    `json:"context"`
	// Unpredicted is how many tokens were only ever context: the first of each document without a prefix. It is
	// not known of pieces of text.
	Unpredicted int       `json:"unpredicted_tokens"`
	Kept        int       `json:"windows_kept"` // from an earlier run's file
	Seconds     float64   `json:"seconds"`
	Total       figures   `json:"total"`
	Documents   []figures `json:"documents"`
}

func report(w io.Writer, o *Options, model string, docs []*document, prefixed bool, kept int, took time.Duration) error {
	rep := Report{Model: model, Endpoint: o.BaseURL, Window: o.Window, Context: o.Context, Kept: kept, Seconds: took.Seconds()}
	for _, d := range docs {
		f := figures{Document: d.name}
		f.add(d)
		f.finish()
		rep.Documents = append(rep.Documents, f)
		if f.Tokens > 0 { // of a text of one token nothing is predicted, and its bytes would make the rest look better
			rep.Total.add(d)
		}
		if !prefixed && o.TextBytes == 0 {
			rep.Unpredicted++
		}
	}
	rep.Total.finish()
	if rep.Total.Tokens == 0 {
		return fmt.Errorf("no token could be predicted: texts of one token need --prefix")
	}
	if o.JSON {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(rep)
	}
	return table(w, &rep)
}

// shown is how many documents have a row of their own.
const shown = 20

func table(w io.Writer, rep *Report) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "tokens\twords\tbytes\tnll/token\tppl/token\tppl/word\tppl/byte\tbits/byte\t  document")
	row := func(f *figures, name string) {
		if f.Tokens == 0 {
			fmt.Fprintf(t, "0\t%d\t%d\t–\t–\t–\t–\t–\t  %s\n", f.Words, f.Bytes, name)
			return
		}
		fmt.Fprintf(t, "%d\t%d\t%d\t%.4f\t%.4f\t%.4f\t%.4f\t%.4f\t  %s\n", f.Tokens, f.Words, f.Bytes, f.NLL, f.TokenPerplexity, f.WordPerplexity, f.BytePerplexity, f.BitsPerByte, name)
	}
	if len(rep.Documents) > 1 {
		for i := range rep.Documents[:min(shown, len(rep.Documents))] {
			row(&rep.Documents[i], rep.Documents[i].Document)
		}
	}
	name := "total"
	if more := len(rep.Documents) - shown; more > 0 {
		name = fmt.Sprintf("total, with %d documents not shown", more)
	}
	if len(rep.Documents) == 1 {
		name = rep.Documents[0].Document
	}
	row(&rep.Total, name)
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "model %s, windows of %d tokens, %.1f s", rep.Model, rep.Window, rep.Seconds)
	if rep.Kept > 0 {
		fmt.Fprintf(w, ", %d windows from the earlier run", rep.Kept)
	}
	if rep.Unpredicted > 0 {
		fmt.Fprintf(w, ", the first token of each document not predicted (--prefix)")
	}
	_, err := fmt.Fprintln(w)
	return err
}
