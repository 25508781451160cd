package configs

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// maxFile bounds a configuration file.
const maxFile = 8 << 20

// Load reads, expands, decodes, defaults and validates the file at path. All
// mistakes are reported at once, joined, each an *Error of one line. Files
// that the configuration names are relative to the folder it stands in.
func Load(path string, getenv Getenv) (*Config, error) {
	info, err := os.Stat(path)
	if err == nil && info.IsDir() {
		return nil, fmt.Errorf("configuration %s: is a folder, want a file", path)
	}
	if err == nil && info.Size() > maxFile {
		return nil, fmt.Errorf("configuration %s: %d bytes, want at most %d", path, info.Size(), maxFile)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("configuration %w", err)
	}
	// A file that is written in place is empty for a moment, or has its first
	// comments only; taken for the defaults then, it would put a running
	// gateway's models and keys away.
	if blank(data) {
		return nil, fmt.Errorf("configuration %s: is empty; write {} for the defaults", path)
	}
	c, err := Parse(path, data, getenv)
	if err != nil {
		return nil, err
	}
	c.resolvePaths(filepath.Dir(path))
	return c, nil
}

// blank says whether there are but comments.
func blank(data []byte) bool {
	for line := range bytes.Lines(bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))) {
		if line = bytes.TrimSpace(line); len(line) > 0 && line[0] != '#' {
			return false
		}
	}
	return true
}

// Parse is Load without the file: name is what errors call it. Relative paths
// are left as they are.
func Parse(name string, data []byte, getenv Getenv) (*Config, error) {
	p := newProblems(name)
	c := newDefault(reflect.TypeFor[Config]()).Interface().(*Config)
	root, ok := parseYAML(p, data)
	if !ok {
		return nil, p.err()
	}
	d := newDecoder(p, getenv)
	if root != nil {
		d.decode("", root, reflect.ValueOf(c).Elem())
	}
	c.refs = d.refs
	if _, given := d.lines["models"]; !given {
		c.Models = defaultModels()
	}
	shareSettings(c.Keys, d.lines)
	v := &validator{problems: p, c: c, lines: d.lines}
	v.config()
	if err := p.err(); err != nil {
		return nil, err
	}
	c.inherit()
	c.origin = &origin{file: name, lines: d.lines}
	return c, nil
}

// Default is the configuration without a file: model penstock-local on four
// local replicas, no keys.
func Default() *Config {
	c := newDefault(reflect.TypeFor[Config]()).Interface().(*Config)
	c.Models = defaultModels()
	c.inherit()
	return c
}

// Validate checks a configuration that was changed or made in code, with the
// rules of Load.
func (c *Config) Validate() error {
	p := newProblems("")
	v := &validator{problems: p, c: c}
	v.config()
	return p.err()
}

// Hash identifies the effective configuration: equal hashes, equal behaviour
// in one environment. It is taken of the redacted form, so it tells nothing of
// a secret and is the same on all gateways that share a file.
func (c *Config) Hash() string {
	b, err := c.Redacted()
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8])
}

// resolvePaths makes the files that c names relative to dir.
func (c *Config) resolvePaths(dir string) {
	for _, f := range c.files() {
		if filepath.IsAbs(*f.path) {
			continue
		}
		*f.path = filepath.Join(dir, *f.path)
		if r, ok := c.refs[f.key]; ok {
			c.refs[f.key] = newRef(filepath.Join(dir, r.source), *f.path)
		}
	}
}

// parseYAML makes the syntax tree of the one document in data; nil for an
// empty one. The parser stops at the first error of syntax.
func parseYAML(p *problems, data []byte) (ast.Node, bool) {
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	if !checkText(p, data) {
		return nil, false
	}
	file, err := parseBytes(hideRefs(data))
	if err != nil {
		line, text := syntaxError(err)
		p.add(line, "", "not valid YAML: %s", text)
		return nil, false
	}
	var root ast.Node
	for _, doc := range file.Docs {
		if doc.Body == nil {
			continue
		}
		switch doc.Body.(type) {
		case *ast.NullNode, *ast.CommentGroupNode:
			continue
		}
		if root != nil {
			p.add(lineOf(doc.Body), "", "a second YAML document: want one")
			return nil, false
		}
		root = doc.Body
	}
	return root, true
}

// parseBytes turns a panic of the parser into an error: whatever a file holds,
// a reload must not end the gateway.
func parseBytes(data []byte) (file *ast.File, err error) {
	defer func() {
		if recover() != nil {
			file, err = nil, errors.New("the parser could not read it")
		}
	}()
	return parser.ParseBytes(data, 0, parser.AllowDuplicateMapKey())
}

// checkText refuses what no configuration holds and what would confuse
// messages: invalid UTF-8, control characters, the characters of hideRefs.
func checkText(p *problems, data []byte) bool {
	line := 1
	for i := 0; i < len(data); {
		r, n := utf8.DecodeRune(data[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			p.add(line, "", "not UTF-8 text")
			return false
		case isPrivate(r), r < ' ' && r != '\n' && r != '\r' && r != '\t', r == 0x7f:
			p.add(line, "", "character U+%04X is not allowed", r)
			return false
		case r == '\n':
			line++
		}
		i += n
	}
	return true
}

// quotedPart is where a parser's message may repeat the file's text.
var quotedPart = regexp.MustCompile(`:? "[^"]*"`)

// syntaxError takes line and message from the parser's error and leaves its
// excerpt of the file out, since that may hold a secret.
func syntaxError(err error) (line int, text string) {
	syntax, ok := errors.AsType[yaml.Error](err)
	if !ok {
		return 0, "the parser could not read it"
	}
	if tk := syntax.GetToken(); tk != nil && tk.Position != nil {
		line = tk.Position.Line
	}
	return line, strings.TrimSpace(quotedPart.ReplaceAllString(syntax.GetMessage(), ""))
}
