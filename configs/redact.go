package configs

import (
	"cmp"
	"fmt"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
)

// Redacted is the effective configuration as YAML: defaults and inheritance
// written out, what is neither set nor has a default left out. Whatever came
// from the environment is shown as the reference it came by, so no secret
// appears, and the result can itself be loaded, with the same effect.
func (c *Config) Redacted() ([]byte, error) {
	r := redactor{c: c}
	return yaml.MarshalWithOptions(r.structOf("", reflect.ValueOf(c).Elem(), newDefault(reflect.TypeFor[Config]()).Elem()), yaml.IndentSequence(true))
}

type redactor struct{ c *Config }

// structOf leaves out what is neither set nor set by default; silent is v when
// the file says nothing.
func (r redactor) structOf(key string, v, silent reflect.Value) yaml.MapSlice {
	out := yaml.MapSlice{}
	f := fieldsOf(v.Type())
	for _, name := range f.names {
		field := v.Field(f.index[name])
		byDefault := silent.Field(f.index[name])
		if field.IsZero() && byDefault.IsZero() && !r.explicitlyEmpty(field) {
			continue
		}
		value := r.value(join(key, name), field, byDefault)
		if m, ok := value.(yaml.MapSlice); ok && len(m) == 0 && field.Kind() == reflect.Struct {
			continue
		}
		out = append(out, yaml.MapItem{Key: name, Value: value})
	}
	return out
}

// explicitlyEmpty keeps `engines: []`, which differs from no engines.
func (r redactor) explicitlyEmpty(v reflect.Value) bool {
	return v.Kind() == reflect.Slice && !v.IsNil()
}

func (r redactor) value(key string, v, silent reflect.Value) any {
	switch t := v.Interface().(type) {
	case time.Duration:
		return formatDuration(t)
	case Size:
		return t.String()
	case Secret:
		return r.secret(key, string(t))
	}
	switch v.Kind() {
	case reflect.Pointer:
		return r.structOf(key, v.Elem(), newDefault(v.Type().Elem()).Elem())
	case reflect.Struct:
		return r.structOf(key, v, silent)
	case reflect.Slice:
		list := []any{}
		silent := newDefault(v.Type().Elem()).Elem()
		for i := range v.Len() {
			list = append(list, r.value(fmt.Sprintf("%s[%d]", key, i), v.Index(i), silent))
		}
		return list
	case reflect.Map:
		out := yaml.MapSlice{}
		silent := newDefault(v.Type().Elem()).Elem()
		names := v.MapKeys()
		slices.SortFunc(names, func(a, b reflect.Value) int { return cmp.Compare(a.String(), b.String()) })
		for _, name := range names {
			out = append(out, yaml.MapItem{Key: name.String(), Value: r.value(join(key, name.String()), v.MapIndex(name), silent)})
		}
		return out
	case reflect.String:
		return r.text(key, v.String())
	}
	return v.Interface()
}

// source is the reference by which the value at key came, if it is still that
// value: a command line flag may have replaced it.
func (r redactor) source(key, value string) (string, bool) {
	ref, ok := r.c.refs[key]
	return ref.source, ok && ref.stillIs(value)
}

func (r redactor) secret(key, value string) string {
	if source, ok := r.source(key, value); ok {
		return source
	}
	return Secret(value).String()
}

func (r redactor) text(key, value string) string {
	if source, ok := r.source(key, value); ok {
		return source
	}
	switch {
	case strings.HasSuffix(key, ".command"):
		value = secretFlag.ReplaceAllString(value, "${1}"+redacted)
	case strings.Contains(key, ".launch.env.") && secretVariable.MatchString(key):
		value = redacted
	case key == "redis.url":
		value = withoutPassword(value)
	}
	return strings.ReplaceAll(value, "${", "$${")
}

// Secrets that stand literally where the schema expects none are at least not
// repeated.
var (
	secretFlag     = regexp.MustCompile(`(?i)(--?[a-z0-9_-]*(?:api[-_]?key|token|password|secret)[ =]+)("[^"]*"|'[^']*'|\S+)`)
	secretVariable = regexp.MustCompile(`(?i)(TOKEN|KEY|SECRET|PASSWORD)$`)
)

// withoutPassword hides the passwords in a list of URLs.
func withoutPassword(list string) string {
	parts := strings.Split(list, ",")
	for i, part := range parts {
		if u, err := url.Parse(strings.TrimSpace(part)); err == nil {
			if _, has := u.User.Password(); has {
				parts[i] = u.Redacted()
			}
		}
	}
	return strings.Join(parts, ",")
}
