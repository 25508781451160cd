package configs

import (
	"crypto/sha256"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// maxNodes bounds the values of one file, aliases counted each time they are
// used, so that a few lines of nested aliases cannot fill the memory.
const maxNodes = 200_000

// maxDepth bounds nesting; the schema itself is less than ten deep.
const maxDepth = 64

// decoder walks a syntax tree into a struct. Unlike a general YAML decoder it
// goes on after a mistake, so that all of them are reported at once, and it
// remembers where each key stands and which values refer to the environment.
type decoder struct {
	*problems
	getenv  Getenv
	lines   map[string]int // key → line
	refs    map[string]ref // key → value that refers to the environment
	anchors map[string]ast.Node
	nodes   int
	depth   int
	// overflow: the file is larger or deeper than any configuration.
	overflow bool
}

// ref is a value with references, as written. Of the expanded value it knows
// only whether another one is still the same: it may be a secret, and a
// configuration must be printable.
type ref struct {
	source string
	sum    [sha256.Size]byte
}

func newRef(source, value string) ref { return ref{source: source, sum: refSum(value)} }

func (r ref) stillIs(value string) bool { return r.sum == refSum(value) }

// refSum takes what inherit changes in a value for the same value.
func refSum(value string) [sha256.Size]byte {
	return sha256.Sum256([]byte(strings.ToLower(strings.TrimRight(value, "/"))))
}

func newDecoder(p *problems, getenv Getenv) *decoder {
	return &decoder{problems: p, getenv: getenv, lines: map[string]int{}, refs: map[string]ref{}, anchors: map[string]ast.Node{}}
}

var (
	durationType = reflect.TypeFor[time.Duration]()
	sizeType     = reflect.TypeFor[Size]()
	secretType   = reflect.TypeFor[Secret]()
)

// decode puts n, which stands at key, into v.
func (d *decoder) decode(key string, n ast.Node, v reflect.Value) {
	d.depth++
	defer func() { d.depth-- }()
	if d.tooMuch(n) {
		return
	}
	n, ok := d.resolve(key, n)
	if !ok {
		return
	}
	if _, null := n.(*ast.NullNode); null {
		d.add(lineOf(n), key, "has no value: %s", emptyHint(v.Type()))
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(newDefault(v.Type().Elem()))
		d.decode(key, n, v.Elem())
	case reflect.Struct:
		d.decodeStruct(key, n, v)
	case reflect.Slice:
		d.decodeSlice(key, n, v)
	case reflect.Map:
		d.decodeMap(key, n, v)
	default:
		d.decodeScalar(key, n, v)
	}
}

// tooMuch counts one more value; past the bounds it says so once, and nothing
// more is decoded.
func (d *decoder) tooMuch(n ast.Node) bool {
	d.nodes++
	if d.nodes <= maxNodes && d.depth <= maxDepth {
		return false
	}
	if !d.overflow {
		d.overflow = true
		d.add(lineOf(n), "", "too many values, or nested too deeply")
	}
	d.nodes = maxNodes
	return true
}

// resolve follows anchors and aliases and refuses tags.
func (d *decoder) resolve(key string, n ast.Node) (ast.Node, bool) {
	for range maxDepth {
		switch t := n.(type) {
		case nil:
			return nil, false
		case *ast.AnchorNode:
			if t.Name != nil && t.Value != nil {
				d.anchors[t.Name.GetToken().Value] = t.Value
			}
			n = t.Value
		case *ast.AliasNode:
			name := t.Value.GetToken().Value
			target, ok := d.anchors[name]
			if !ok {
				d.add(lineOf(t), key, "alias *%s: no such anchor before it", name)
				return nil, false
			}
			n = target
		case *ast.TagNode:
			d.add(lineOf(t), key, "YAML tags are not supported")
			return nil, false
		default:
			return n, true
		}
	}
	d.add(lineOf(n), key, "aliases that lead in a circle")
	return nil, false
}

// emptyHint says what to write where nothing stands.
func emptyHint(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Slice:
		return "write [] for none, or leave the key out"
	case reflect.Struct, reflect.Pointer, reflect.Map:
		return "write {} for the defaults, or leave the key out"
	default:
		return fmt.Sprintf("want %s, or leave the key out", wanted(t))
	}
}

// pair is one key of a mapping with its value.
type pair struct {
	name  string
	line  int
	value ast.Node
}

// pairs lists a mapping's keys, each once. What `<<` merges comes after the
// mapping's own keys and gives way to them.
func (d *decoder) pairs(key string, n ast.Node, want string) ([]pair, bool) {
	m, ok := n.(ast.MapNode)
	if !ok {
		d.add(lineOf(n), key, "want %s, got %s", want, describe(n))
		return nil, false
	}
	var own, merged []pair
	first := map[string]int{}
	for it := m.MapRange(); it.Next(); {
		if it.Key().IsMergeKey() {
			merged = append(merged, d.merge(key, it.Value())...)
			continue
		}
		k, ok := d.resolve(key, it.Key())
		if !ok {
			continue
		}
		text, ok := scalarText(k)
		if !ok || hasRef(text) {
			d.add(lineOf(k), key, "a key must be plain text")
			continue
		}
		if line, twice := first[text]; twice {
			d.add(lineOf(k), join(key, text), "given twice, first on line %d", line)
			continue
		}
		first[text] = lineOf(k)
		own = append(own, pair{text, lineOf(k), it.Value()})
	}
	for _, p := range merged {
		if _, ok := first[p.name]; !ok {
			first[p.name] = p.line
			own = append(own, p)
		}
	}
	return own, true
}

// merge reads what stands after `<<:`, one mapping or a list of them.
func (d *decoder) merge(key string, n ast.Node) []pair {
	d.depth++
	defer func() { d.depth-- }()
	if d.tooMuch(n) {
		return nil
	}
	n, ok := d.resolve(key, n)
	if !ok {
		return nil
	}
	var all []pair
	if list, ok := n.(*ast.SequenceNode); ok {
		for _, v := range list.Values {
			all = append(all, d.merge(key, v)...)
		}
		return all
	}
	all, _ = d.pairs(key, n, "a mapping to merge")
	return all
}

func (d *decoder) decodeStruct(key string, n ast.Node, v reflect.Value) {
	pairs, ok := d.pairs(key, n, "a mapping")
	if !ok {
		return
	}
	d.note(key, lineOf(n))
	known := fieldsOf(v.Type())
	for _, p := range pairs {
		i, ok := known.index[p.name]
		if !ok {
			d.unknownKey(key, p, v.Type())
			continue
		}
		d.note(join(key, p.name), p.line)
		d.decode(join(key, p.name), p.value, v.Field(i))
	}
}

// unknownKey names the key, unless it looks like something that was never
// meant to be one: a secret that slipped out of its place is not repeated.
func (d *decoder) unknownKey(key string, p pair, t reflect.Type) {
	known := fieldsOf(t)
	if near, ok := nearest(p.name, known.names); ok {
		d.add(p.line, join(key, p.name), "unknown key: did you mean %s?", near)
		return
	}
	for _, name := range known.names {
		inner := t.Field(known.index[name]).Type
		if inner.Kind() == reflect.Struct {
			if _, ok := fieldsOf(inner).index[p.name]; ok {
				d.add(p.line, join(key, p.name), "unknown key: did you mean %s.%s?", name, p.name)
				return
			}
		}
	}
	shown := join(key, p.name)
	if !namePattern.MatchString(p.name) || len(p.name) > 40 {
		shown = join(key, "(not shown)")
	}
	d.add(p.line, shown, "unknown key: want one of %s", strings.Join(known.names, ", "))
}

func (d *decoder) decodeSlice(key string, n ast.Node, v reflect.Value) {
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		d.add(lineOf(n), key, "want a list, got %s", describe(n))
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), 0, len(seq.Values)))
	for i, item := range seq.Values {
		at := fmt.Sprintf("%s[%d]", key, i)
		d.note(at, lineOf(item))
		elem := newDefault(v.Type().Elem()).Elem()
		d.decode(at, item, elem)
		v.Set(reflect.Append(v, elem))
	}
}

func (d *decoder) decodeMap(key string, n ast.Node, v reflect.Value) {
	pairs, ok := d.pairs(key, n, "a mapping")
	if !ok {
		return
	}
	v.Set(reflect.MakeMapWithSize(v.Type(), len(pairs)))
	for _, p := range pairs {
		at := join(key, p.name)
		d.note(at, p.line)
		elem := newDefault(v.Type().Elem()).Elem()
		d.decode(at, p.value, elem)
		v.SetMapIndex(reflect.ValueOf(p.name), elem)
	}
}

func (d *decoder) decodeScalar(key string, n ast.Node, v reflect.Value) {
	source, ok := scalarText(n)
	if !ok {
		d.add(lineOf(n), key, "want %s, got %s", wanted(v.Type()), describe(n))
		return
	}
	text, err := expandRefs(source, d.getenv)
	if err != nil {
		d.add(lineOf(n), key, "%v", err)
		return
	}
	if v.Type() == secretType {
		d.decodeSecret(key, n, source, text, v)
		return
	}
	if !plainFor(n, v.Type(), hasRef(source)) || !setScalar(v, text) {
		d.add(lineOf(n), key, "%s: want %s%s", quote(source), wanted(v.Type()), quotesHint(n, v.Type()))
		return
	}
	if hasRef(source) && v.Kind() == reflect.String {
		d.refs[key] = newRef(restoreRefs(source), text)
	}
}

// decodeSecret takes only what comes from the environment. The messages hold
// neither the literal nor the value.
func (d *decoder) decodeSecret(key string, n ast.Node, source, text string, v reflect.Value) {
	switch {
	case !hasRef(source):
		d.add(lineOf(n), key, "a secret may not stand in the file: want ${NAME}, a reference to the environment%s", orHash(key))
	case text == "":
		d.add(lineOf(n), key, "%s is empty in the environment", restoreRefs(source))
	case strings.TrimSpace(text) != text || strings.ContainsFunc(text, isControl):
		d.add(lineOf(n), key, "%s has white space around it or control characters in it (a line break at its end?)", restoreRefs(source))
	default:
		v.SetString(text)
		d.refs[key] = newRef(restoreRefs(source), text)
	}
}

// orHash: only client keys can be given by their hash.
func orHash(key string) string {
	if strings.HasPrefix(key, "keys[") {
		return ", or sha256: the key's hash"
	}
	return ""
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }

// plainFor refuses what YAML itself read as another type than v's: quoted
// numbers, true where text is wanted. References are text whatever they hold.
func plainFor(n ast.Node, t reflect.Type, fromEnv bool) bool {
	isText := t.Kind() == reflect.String || t == sizeType || t == durationType
	switch n.(type) {
	case *ast.BoolNode:
		return t.Kind() == reflect.Bool
	case *ast.InfinityNode, *ast.NanNode:
		return false
	case *ast.LiteralNode:
		return t.Kind() == reflect.String
	case *ast.StringNode:
		quoted := n.GetToken().Type == token.SingleQuoteType || n.GetToken().Type == token.DoubleQuoteType
		return isText || fromEnv || !quoted
	}
	return true
}

// quotesHint tells of quotes that should or should not be there.
func quotesHint(n ast.Node, t reflect.Type) string {
	switch n.(type) {
	case *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		if t.Kind() == reflect.String {
			return " (in quotes, if it is meant as text)"
		}
	case *ast.StringNode:
		if k := n.GetToken().Type; k == token.SingleQuoteType || k == token.DoubleQuoteType {
			return " (without quotes)"
		}
	}
	return ""
}

// setScalar parses text into v; false when it is none of v's values.
func setScalar(v reflect.Value, text string) bool {
	switch v.Type() {
	case durationType:
		n, err := time.ParseDuration(text)
		v.SetInt(int64(n))
		return err == nil
	case sizeType:
		n, err := ParseSize(text)
		v.SetInt(int64(n))
		return err == nil
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
		return true
	case reflect.Bool:
		v.SetBool(text == "true")
		return text == "true" || text == "false"
	case reflect.Int, reflect.Int64:
		n, err := strconv.ParseInt(strings.ReplaceAll(text, "_", ""), 10, 64)
		if err == nil {
			v.SetInt(n)
		}
		return err == nil
	case reflect.Float64:
		f, err := strconv.ParseFloat(text, 64)
		ok := err == nil && !math.IsNaN(f) && !math.IsInf(f, 0)
		if ok {
			v.SetFloat(f)
		}
		return ok
	}
	panic("configs: the schema has a field of kind " + v.Kind().String())
}

// wanted names a type as messages and the reference do.
func wanted(t reflect.Type) string {
	switch t {
	case durationType:
		return "a duration with its unit, as 30s, 5m or 1h30m"
	case sizeType:
		return "a size, as 64MiB, 16KiB or 1048576"
	case secretType:
		return "${NAME}, a reference to the environment"
	}
	switch t.Kind() {
	case reflect.String:
		return "text"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int64:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	case reflect.Slice:
		return "a list"
	default:
		return "a mapping"
	}
}

// describe names what was found instead, without its content.
func describe(n ast.Node) string {
	switch n.(type) {
	case ast.MapNode:
		return "a mapping"
	case *ast.SequenceNode:
		return "a list"
	case *ast.BoolNode:
		return "true or false"
	case *ast.IntegerNode, *ast.FloatNode:
		return "a number"
	}
	return "text"
}

// scalarText is a scalar as it was written, without its quotes.
func scalarText(n ast.Node) (string, bool) {
	switch t := n.(type) {
	case *ast.StringNode:
		return t.Value, true
	case *ast.LiteralNode:
		return t.Value.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return strings.TrimSpace(n.GetToken().Value), true
	}
	return "", false
}

// note remembers the first line on which key stands.
func (d *decoder) note(key string, line int) {
	if _, ok := d.lines[key]; !ok {
		d.lines[key] = line
	}
}

// lineOf is where a node begins; for a block mapping, its first key.
func lineOf(n ast.Node) int {
	if m, ok := n.(*ast.MappingNode); ok && len(m.Values) > 0 && !m.IsFlowStyle {
		return lineOf(m.Values[0].Key)
	}
	if n == nil || n.GetToken() == nil || n.GetToken().Position == nil {
		return 0
	}
	return n.GetToken().Position.Line
}

func join(key, name string) string {
	if key == "" {
		return name
	}
	return key + "." + name
}

// fields are a struct's keys in the order of the schema.
type fields struct {
	names []string
	index map[string]int
}

func fieldsOf(t reflect.Type) fields {
	f := fields{index: map[string]int{}}
	for i := range t.NumField() {
		if name := t.Field(i).Tag.Get("yaml"); name != "" {
			f.names = append(f.names, name)
			f.index[name] = i
		}
	}
	return f
}
