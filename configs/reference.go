package configs

import (
	"cmp"
	_ "embed"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"
)

//go:generate go test -run TestTheReferenceIsUpToDate -update .

// schemaSource is where the reference takes its words from: the comments of
// schema.go are the documentation, and the defaults are the code's.
//
//go:embed schema.go
var schemaSource string

const referenceIntro = `# Configuration

Generated from configs/schema.go and its defaults by ` + "`go generate ./configs`" + `.

One YAML file, named with ` + "`--config`" + `. Every key has a default; without a file four
embedded replicas serve the model penstock-local. ` + "`penstock check --config FILE`" + ` reports
every mistake at once, each as one line with file and line number, and prints
the effective configuration. Examples are in configs/examples.

- Decoding is strict: unknown keys, wrong types, keys given twice and keys
  without a value are errors.
- ` + "`${NAME}`" + ` anywhere in a value is replaced by the environment variable, which
  must be set; ` + "`$${NAME}`" + ` stands for the text itself. Comments and keys are left
  alone. Secrets can be given in no other way; a client's key also by its hash.
- Durations are written as ` + "`30s`, `5m` or `1h30m`" + `, sizes as ` + "`64MiB`, `16KiB`" + ` or a
  number of bytes.
- Paths are relative to the folder of the configuration file.
- Anchors, aliases and ` + "`<<`" + ` work as in YAML; tags and several documents do not.
- A file that is reloaded is taken as a whole or not at all.
`

// WriteReference writes docs/configuration.md.
func WriteReference(w io.Writer) error {
	docs, err := schemaDocs(schemaSource)
	if err != nil {
		return err
	}
	r := &reference{docs: docs, sections: map[reflect.Type]*section{}}
	r.visit("", newDefault(reflect.TypeFor[Config]()).Elem())
	var b strings.Builder
	b.WriteString(referenceIntro)
	for _, s := range r.order {
		r.write(&b, s)
	}
	_, err = io.WriteString(w, b.String())
	return err
}

// reference collects one section for each struct of the schema.
type reference struct {
	docs     map[string]string // "Type" or "Type.Field" → comment
	sections map[reflect.Type]*section
	order    []*section
}

// section is one struct: where it stands, and its values when the file is
// silent (at the first of these places).
type section struct {
	places []string
	silent reflect.Value
}

func (r *reference) visit(at string, v reflect.Value) {
	t := v.Type()
	if s, seen := r.sections[t]; seen {
		if s.silent.IsZero() {
			s.silent = v // a model's time-outs are the global ones: those are shown
		}
		s.places = append(s.places, at)
		return
	}
	s := &section{places: []string{at}, silent: v}
	r.sections[t] = s
	r.order = append(r.order, s)
	f := fieldsOf(t)
	for _, name := range f.names {
		inner, suffix := v.Field(f.index[name]), ""
		switch inner.Kind() {
		case reflect.Slice:
			inner, suffix = newDefault(inner.Type().Elem()).Elem(), "[]"
		case reflect.Map:
			inner, suffix = newDefault(inner.Type().Elem()).Elem(), ".NAME"
		case reflect.Pointer:
			inner = newDefault(inner.Type().Elem()).Elem()
		}
		if inner.Kind() == reflect.Struct {
			r.visit(join(at, name)+suffix, inner)
		}
	}
}

func (r *reference) write(b *strings.Builder, s *section) {
	t := s.silent.Type()
	if s.places[0] == "" {
		b.WriteString("\n## The file\n\n")
	} else {
		fmt.Fprintf(b, "\n## `%s`\n\n", strings.Join(s.places, "`, `"))
		fmt.Fprintf(b, "%s\n\n", words(r.docs[t.Name()], t.Name()))
	}
	b.WriteString("| key | value | default | |\n|---|---|---|---|\n")
	f := fieldsOf(t)
	for _, name := range f.names {
		field := t.Field(f.index[name])
		doc := words(r.docs[t.Name()+"."+field.Name], field.Name)
		fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", name, valueName(field.Type), defaultText(s.silent.Field(f.index[name])), strings.ReplaceAll(doc, "|", `\|`))
	}
}

// defaultClause is the part of a comment that the default column repeats; what
// follows it after a semicolon becomes a sentence. "Default: …" in words stays.
var defaultClause = regexp.MustCompile(` Default \S+?(\.$|\. |; \w)`)

// words turns a Go comment into a sentence about a key: the subject and what
// another column says are dropped.
func words(doc, subject string) string {
	doc = strings.Join(strings.Fields(doc), " ")
	doc = strings.TrimPrefix(doc, subject+" ")
	for _, verb := range []string{"is ", "are "} {
		doc = strings.TrimPrefix(doc, verb)
	}
	doc = strings.TrimSpace(defaultClause.ReplaceAllStringFunc(doc, func(m string) string {
		if _, rest, ok := strings.Cut(m, "; "); ok {
			return " " + strings.ToUpper(rest)
		}
		return " "
	}))
	if doc == "" {
		return ""
	}
	return strings.ToUpper(doc[:1]) + doc[1:]
}

func valueName(t reflect.Type) string {
	switch t {
	case durationType:
		return "duration"
	case sizeType:
		return "size"
	case secretType:
		return "secret"
	}
	switch t.Kind() {
	case reflect.String:
		return "text"
	case reflect.Bool:
		return "true, false"
	case reflect.Int, reflect.Int64:
		return "whole number"
	case reflect.Float64:
		return "number"
	case reflect.Slice:
		if t.Elem().Kind() == reflect.String {
			return "list of text"
		}
		return "list"
	}
	return "mapping"
}

func defaultText(v reflect.Value) string {
	switch t := v.Interface().(type) {
	case time.Duration:
		if t == 0 {
			return ""
		}
		return "`" + formatDuration(t) + "`"
	case Size:
		return "`" + t.String() + "`"
	}
	switch v.Kind() {
	case reflect.String, reflect.Slice, reflect.Map, reflect.Pointer, reflect.Struct:
		if v.Kind() == reflect.String && v.Len() > 0 {
			return "`" + v.String() + "`"
		}
		return ""
	}
	return fmt.Sprintf("`%v`", v.Interface())
}

// schemaDocs reads the comments of all structs and their fields.
func schemaDocs(source string) (map[string]string, error) {
	file, err := parser.ParseFile(token.NewFileSet(), "schema.go", source, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	docs := map[string]string{}
	for _, decl := range file.Decls {
		gen, ok := decl.(*ast.GenDecl)
		if !ok || gen.Tok != token.TYPE {
			continue
		}
		for _, spec := range gen.Specs {
			typeDocs(docs, gen, spec.(*ast.TypeSpec))
		}
	}
	return docs, nil
}

func typeDocs(docs map[string]string, gen *ast.GenDecl, spec *ast.TypeSpec) {
	docs[spec.Name.Name] = cmp.Or(spec.Doc.Text(), gen.Doc.Text())
	body, ok := spec.Type.(*ast.StructType)
	if !ok {
		return
	}
	for _, f := range body.Fields.List {
		if i := slices.IndexFunc(f.Names, (*ast.Ident).IsExported); i >= 0 {
			docs[spec.Name.Name+"."+f.Names[i].Name] = f.Doc.Text()
		}
	}
}
