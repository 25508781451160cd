package score

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"
	"unicode/utf8"
)

// document is one text and what becomes of it.
type document struct {
	name  string
	text  string
	words int

	windows []window
	results []result // of each window
	left    int      // windows without a result
}

// load reads all documents.
func load(o *Options, stdin io.Reader) ([]*document, error) {
	var docs []*document
	for _, name := range o.Files {
		if err := loadFile(name, o.Field, stdin, &docs); err != nil {
			return nil, err
		}
	}
	if o.Limit > 0 && len(docs) > o.Limit {
		docs = docs[:o.Limit]
	}
	if len(docs) == 0 {
		return nil, errors.New("no text in the files")
	}
	return docs, nil
}

func loadFile(name, field string, stdin io.Reader, docs *[]*document) error {
	in := stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		in = f
	}
	if strings.HasSuffix(name, ".gz") {
		z, err := gzip.NewReader(in)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		in = z
	}
	r := bufio.NewReaderSize(in, 1<<20)
	if mark, _ := r.Peek(3); string(mark) == "\ufeff" {
		_, _ = r.Discard(3) // says that this is UTF-8, and is none of the text
	}
	if strings.HasSuffix(strings.TrimSuffix(name, ".gz"), ".jsonl") {
		return loadLines(name, field, r, docs)
	}
	b, err := io.ReadAll(r)
	if err == nil && !utf8.Valid(b) {
		err = errEncoding
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	add(docs, name, string(b))
	return nil
}

// errEncoding ends a run: JSON has no other encoding, so another text than the file's would be scored, and the
// figures per byte would be of neither.
var errEncoding = errors.New("not UTF-8: convert it first, as with iconv")

// loadLines reads JSON lines: strings, or objects with the text in field.
func loadLines(name, field string, r *bufio.Reader, docs *[]*document) error {
	for n := 1; ; n++ {
		line, err := r.ReadBytes('\n')
		if len(strings.TrimSpace(string(line))) > 0 {
			text, bad := textOf(line, field)
			if bad != nil {
				return fmt.Errorf("%s:%d: %w", name, n, bad)
			}
			add(docs, fmt.Sprintf("%s:%d", name, n), text)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
}

func textOf(line []byte, field string) (string, error) {
	if !utf8.Valid(line) {
		return "", errEncoding
	}
	var text string
	if json.Unmarshal(line, &text) == nil {
		return text, nil
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(line, &object); err != nil {
		return "", fmt.Errorf("neither a JSON string nor an object: %w", err)
	}
	raw, ok := object[field]
	if !ok {
		return "", fmt.Errorf("no field %q (--field names the one that holds the text)", field)
	}
	if err := json.Unmarshal(raw, &text); err != nil {
		return "", fmt.Errorf("field %q is not a string", field)
	}
	return text, nil
}

// add keeps a document that has something to predict.
func add(docs *[]*document, name, text string) {
	if text != "" {
		*docs = append(*docs, &document{name: name, text: text, words: words(text)})
	}
}

// words counts words as lm-evaluation-harness does for word perplexity: the pieces between runs of white space,
// an empty one at either end included.
func words(text string) int {
	n, space := 1, false
	for _, r := range text {
		s := unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f
		if s && !space {
			n++
		}
		space = s
	}
	return n
}
