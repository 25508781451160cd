package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"penstock/e2e/harness"
)

// contract is docs/openapi.yaml, and what of it the server has been seen to do.
type contract struct {
	t        *testing.T
	doc      *openapi3.T
	statuses map[string]int  // of each error code, as the document's table has them
	seen     map[string]bool // operations, responses, headers and codes
}

// codeRow is a row of the document's table of error codes.
var codeRow = regexp.MustCompile("(?m)^\\| `(\\w+)` \\| (\\d+) \\|")

func readContract(t *testing.T) *contract {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromFile(filepath.Join(harness.Root(), "docs", "openapi.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	c := &contract{t: t, doc: doc, statuses: map[string]int{}, seen: map[string]bool{}}
	for _, m := range codeRow.FindAllStringSubmatch(c.schema("ErrorCode").Description, -1) {
		c.statuses[m[1]], _ = strconv.Atoi(m[2])
	}
	return c
}

func (c *contract) schema(name string) *openapi3.Schema {
	c.t.Helper()
	ref := c.doc.Components.Schemas[name]
	if ref == nil {
		c.t.Fatalf("the document has no schema %s", name)
	}
	return ref.Value
}

// names are the values of an enumeration.
func (c *contract) names(s *openapi3.Schema) []string {
	var all []string
	for _, v := range s.Enum {
		all = append(all, fmt.Sprint(v))
	}
	slices.Sort(all)
	return all
}

// valid holds JSON against one of the document's schemas.
func (c *contract) valid(what, schema string, body []byte) {
	c.t.Helper()
	if err := accepts(c.schema(schema), body); err != nil {
		c.t.Errorf("%s: not as schema %s has it: %v\n%s", what, schema, err, body)
	}
}

func accepts(s *openapi3.Schema, body []byte) error {
	var v any
	if err := json.Unmarshal(body, &v); err != nil {
		return err
	}
	return brief(s.VisitJSON(v, openapi3.EnableJSONSchema2020(), openapi3.MultiErrors(), openapi3.EnableFormatValidation()))
}

// schemaText is what an error repeats of the schema and of the value.
var schemaText = regexp.MustCompile(`(?s)\nSchema:.*?\nValue:\n.*?(\n \| |$)`)

// brief is an error without the text of schema and value.
func brief(err error) error {
	if err == nil {
		return nil
	}
	return errors.New(schemaText.ReplaceAllString(err.Error(), "; "))
}

// answered holds an answer to a described operation, such as "GET /limits",
// against the document.
func (c *contract) answered(operation string, a answer) {
	c.t.Helper()
	method, path, _ := strings.Cut(operation, " ")
	item := c.doc.Paths.Value(path)
	if item == nil || item.GetOperation(method) == nil {
		c.t.Errorf("%s is not described", operation)
		return
	}
	c.seen[operation] = true
	all := item.GetOperation(method).Responses
	ref, name := all.Status(a.status), operation+" "+strconv.Itoa(a.status)
	if ref == nil {
		ref, name = all.Default(), operation+" default"
	}
	if ref == nil {
		c.t.Errorf("%s: status %d is not described; %s", operation, a.status, a.body)
		return
	}
	if ref.Ref != "" {
		name = ref.Ref
	}
	if slices.Contains(item.GetOperation(method).Tags, "engine") {
		a.header = a.header.Clone()
		a.header.Del("X-Content-Type-Options") // the scripted engine's own, which passes
	}
	c.response(operation, name, ref.Value, a)
}

// componentPrefix begins the names of the responses that operations share.
const componentPrefix = "#/components/responses/"

// general holds an answer that belongs to no operation against a shared response.
func (c *contract) general(what, name string, a answer) {
	c.t.Helper()
	ref := c.doc.Components.Responses[name]
	if ref == nil {
		c.t.Fatalf("the document has no response %s", name)
	}
	c.response(what, componentPrefix+name, ref.Value, a)
}

func (c *contract) response(what, name string, r *openapi3.Response, a answer) {
	c.t.Helper()
	c.seen[name] = true
	what += " " + strconv.Itoa(a.status)
	for _, err := range []error{c.headers(r, a.header), content(r, a), c.code(a)} {
		if err != nil {
			c.t.Errorf("%s: %v\n%.600s", what, err, a.body)
		}
	}
}

// framing are headers of HTTP itself, which no operation describes.
var framing = []string{"Connection", "Content-Length", "Content-Type", "Date", "Keep-Alive", "Transfer-Encoding"}

// headers wants each header described and as described, and each that is required.
func (c *contract) headers(r *openapi3.Response, got http.Header) error {
	var errs []error
	described := map[string]*openapi3.HeaderRef{}
	for name, ref := range r.Headers {
		name = http.CanonicalHeaderKey(name)
		described[name] = ref
		if ref.Value.Required && got.Get(name) == "" {
			errs = append(errs, fmt.Errorf("no header %s", name))
		}
	}
	for name := range got {
		ref := described[name]
		switch {
		case slices.Contains(framing, name):
		case ref == nil:
			errs = append(errs, fmt.Errorf("header %s: %s is not described", name, got.Get(name)))
		default:
			c.seen[ref.Ref] = true
			if err := headerValue(ref.Value.Schema.Value, got.Get(name)); err != nil {
				errs = append(errs, fmt.Errorf("header %s: %s: %w", name, got.Get(name), err))
			}
		}
	}
	return errors.Join(errs...)
}

func headerValue(s *openapi3.Schema, value string) error {
	if !s.Type.Is("integer") {
		return s.VisitJSON(value)
	}
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil {
		return err
	}
	return s.VisitJSON(float64(n))
}

// content wants the media type described and, of JSON, each field.
func content(r *openapi3.Response, a answer) error {
	if len(r.Content) == 0 {
		if len(a.body) > 0 {
			return errors.New("a body is not described")
		}
		return nil
	}
	typ, _, err := mime.ParseMediaType(a.header.Get("Content-Type"))
	if err != nil {
		return fmt.Errorf("content type %q: %w", a.header.Get("Content-Type"), err)
	}
	media := r.Content[typ]
	if media == nil {
		media = r.Content["*/*"]
	}
	switch {
	case media == nil:
		return fmt.Errorf("content type %s is not described", typ)
	case media.Schema == nil || a.body == nil: // the answer to a HEAD has none
		return nil
	case typ == "application/json":
		return accepts(media.Schema.Value, a.body)
	}
	return media.Schema.Value.VisitJSON(string(a.body))
}

// code notes the error code of an answer, and wants the status that the table has.
func (c *contract) code(a answer) error {
	code := oursCode(a.body)
	status, ours := c.statuses[code]
	if !ours {
		return nil // the engine's, or no error; what must be ours has a schema that says so
	}
	c.seen["code "+code] = true
	if status != a.status {
		return fmt.Errorf("the table says that %s is %d", code, status)
	}
	return nil
}

// oursCode is the code of an error in OpenAI's form, or "".
func oursCode(body []byte) string {
	var e apiError
	if json.Unmarshal(body, &e) != nil {
		return ""
	}
	return deref(e.Error.Code)
}

// ask is one request to a described operation, and what must come of it.
type ask struct {
	operation string // method and described path
	path      string // where something stands in it for {…}, or a query is added
	body      string
	headers   []string
	status    int
	code      string // of an error of ours; "": none
}

// send sends it and holds the answer against the document.
func (c *contract) send(base string, q ask) answer {
	c.t.Helper()
	method, path, _ := strings.Cut(q.operation, " ")
	if q.path != "" {
		path = q.path
	}
	a := do(c.t, method, base+path, q.body, q.headers...)
	c.check(q, a)
	return a
}

func (c *contract) check(q ask, a answer) {
	c.t.Helper()
	if a.status != q.status {
		c.t.Errorf("%s %.200s: got %d %.300s, want %d", q.operation, q.body, a.status, a.body, q.status)
	}
	c.answered(q.operation, a)
	if q.code == "" {
		return
	}
	if inForm(q.operation, "") != "" { // one that has no code
		c.valid(q.operation, "AnthropicError", a.body)
		return
	}
	c.valid(q.operation, "Error", a.body)
	if got := oursCode(a.body); got != q.code {
		c.t.Errorf("%s %.200s: got code %s, want %s", q.operation, q.body, got, q.code)
	}
}

// inForm is the name of a shared response in the form of errors that a path has.
func inForm(path, name string) string {
	if strings.Contains(path, "/v1/messages") {
		return "Anthropic" + name
	}
	return name
}

// sentEvents are the data of a stream's events of one name; "" is those without.
func sentEvents(stream []byte, name string) [][]byte {
	var all [][]byte
	for event := range bytes.SplitSeq(stream, []byte("\n\n")) {
		got := ""
		for line := range bytes.Lines(append(event, '\n')) {
			key, value, _ := bytes.Cut(bytes.TrimSpace(line), []byte(": "))
			switch string(key) {
			case "event":
				got = string(value)
			case "data":
				if got == name {
					all = append(all, value)
				}
			}
		}
	}
	return all
}
