package configs

import (
	"bytes"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestTheReferenceIsUpToDate(t *testing.T) {
	var b bytes.Buffer
	if err := WriteReference(&b); err != nil {
		t.Fatal(err)
	}
	golden(t, filepath.Join("..", "docs", "configuration.md"), b.String())
}

func TestEveryKeyIsExplainedAndItsCommentTellsTheRightDefault(t *testing.T) {
	docs, err := schemaDocs(schemaSource)
	if err != nil {
		t.Fatal(err)
	}
	r := &reference{docs: docs, sections: map[reflect.Type]*section{}}
	r.visit("", newDefault(reflect.TypeFor[Config]()).Elem())
	said := regexp.MustCompile(`Default ([^\s:]+?)(?:\.$|[.;] )`)
	for _, s := range r.order {
		typ := s.silent.Type()
		f := fieldsOf(typ)
		for _, name := range f.names {
			field := typ.Field(f.index[name])
			doc := strings.Join(strings.Fields(docs[typ.Name()+"."+field.Name]), " ")
			if doc == "" {
				t.Errorf("%s.%s: no comment, so the reference has nothing to say", typ.Name(), field.Name)
			}
			got := strings.Trim(defaultText(s.silent.Field(f.index[name])), "`")
			for _, m := range said.FindAllStringSubmatch(doc, -1) {
				claim := m[1]
				if d, err := time.ParseDuration(claim); err == nil && d > 0 {
					claim = formatDuration(d)
				}
				if claim != got {
					t.Errorf("%s.%s: the comment says default %q, the code %q", typ.Name(), field.Name, claim, got)
				}
			}
		}
	}
}
