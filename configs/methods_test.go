package configs

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"
)

func TestSecretsAreNeverPrintedByAnyFormat(t *testing.T) {
	k := Key{Name: "a", Key: "sk-unmistakable"}
	var b bytes.Buffer
	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		fmt.Fprintf(&b, format+"\n", k)
		fmt.Fprintf(&b, format+"\n", k.Key)
	}
	c, err := Parse("f", []byte("keys: [{name: a, key: ${K}}]\nredis: {url: \"redis://:${K}@h\"}\n"), func(string) (string, bool) { return "sk-unmistakable", true })
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(&b, "%v %+v %#v\n", c.Keys, c.refs, c.Admin)
	slog.New(slog.NewJSONHandler(&b, nil)).Info("x", "key", k.Key, "whole", k)
	slog.New(slog.NewTextHandler(&b, nil)).Info("x", "key", k.Key, "whole", k)
	if err := json.NewEncoder(&b).Encode(k); err != nil {
		t.Fatal(err)
	}
	if s := b.String(); strings.Contains(s, "unmistakable") || strings.Contains(s, hex.EncodeToString([]byte("unmistakable"))) {
		t.Errorf("a secret was printed:\n%s", s)
	}
}

func TestSizesAreReadAndWrittenBack(t *testing.T) {
	for in, want := range map[string]Size{
		"0": 0, "1048576": 1 << 20, "64MiB": 64 << 20, "16 KiB": 16 << 10, "1GiB": 1 << 30, "2TiB": 2 << 40,
		"1MB": 1e6, "3KB": 3000, "7B": 7, "1025": 1025, "-1MiB": -1 << 20,
	} {
		got, err := ParseSize(in)
		if err != nil || got != want {
			t.Errorf("ParseSize(%q): got %d, %v; want %d", in, got, err, want)
		}
		if back, err := ParseSize(got.String()); err != nil || back != got {
			t.Errorf("%q written as %q reads as %d, %v; want %d", in, got, back, err, got)
		}
	}
	for _, in := range []string{"", "MiB", "1.5MiB", "64Mb", "64 apples", "9999999999TiB", "0x10"} {
		if got, err := ParseSize(in); err == nil {
			t.Errorf("ParseSize(%q): got %d, want an error", in, got)
		}
	}
}

func TestAKeyAndItsHashAreTheSameKey(t *testing.T) {
	sum := sha256.Sum256([]byte("sk-one"))
	for _, k := range []Key{{Key: "sk-one"}, {SHA256: hex.EncodeToString(sum[:])}} {
		if got := KeySum(k); got != sum {
			t.Errorf("KeySum(%+v): got %x, want %x", k, got, sum)
		}
	}
}

func TestAKeyIsRefusedFromItsFirstExpiredInstant(t *testing.T) {
	for _, tc := range []struct {
		expires, now string
		want         bool
	}{
		{"", "2100-01-01T00:00:00Z", false},
		{"2027-01-31", "2027-01-30T23:59:59Z", false},
		{"2027-01-31", "2027-01-31T00:00:00Z", true},
		{"2027-01-31T12:00:00+02:00", "2027-01-31T09:59:59Z", false},
		{"2027-01-31T12:00:00+02:00", "2027-01-31T10:00:00Z", true},
	} {
		now, err := time.Parse(time.RFC3339, tc.now)
		if err != nil {
			t.Fatal(err)
		}
		if got := (&Key{Expires: tc.expires}).Expired(now); got != tc.want {
			t.Errorf("expires %q at %s: got %v, want %v", tc.expires, tc.now, got, tc.want)
		}
	}
}

func TestAKeysQueueSettingsComeBeforeTheModels(t *testing.T) {
	m := Model{Queue: Queue{MaxLength: 1000, MaxWait: 30 * time.Second, WaitingCredit: 0.085, HeadHold: 5 * time.Second}}
	k := Key{Queue: Queue{MaxLength: 200, MaxWait: 4 * time.Minute}}
	want := Queue{MaxLength: 200, MaxWait: 4 * time.Minute, WaitingCredit: 0.085, HeadHold: 5 * time.Second}
	if got := m.QueueFor(&k); got != want {
		t.Errorf("QueueFor(key): got %+v, want %+v", got, want)
	}
	if got := m.QueueFor(nil); got != m.Queue {
		t.Errorf("QueueFor(nil): got %+v, want the model's %+v", got, m.Queue)
	}
}

func TestPriorityMultipliesTheWeight(t *testing.T) {
	for priority, want := range map[string]float64{"high": 8, "normal": 2, "batch": 0.5} {
		if got := (&Key{Weight: 2, Priority: priority}).EffectiveWeight(); got != want {
			t.Errorf("weight 2, priority %s: got %v, want %v", priority, got, want)
		}
	}
}

func TestModelLimitsAreFoundUnderEachOfTheModelsNames(t *testing.T) {
	m := Model{Name: "glm", Aliases: []string{"default"}}
	for name, want := range map[string]bool{"glm": true, "default": true, "other": false} {
		k := Key{ModelLimits: map[string]Limits{name: {Concurrency: 3}}}
		if got, ok := k.LimitsFor(&m); ok != want || ok && got.Concurrency != 3 {
			t.Errorf("limits under %q: got %+v, %v; want found: %v", name, got, ok, want)
		}
	}
}

func TestAnOverriddenValueIsShownInsteadOfItsReference(t *testing.T) {
	c, err := Parse("f", []byte("listen: 127.0.0.1:${PORT}\n"), testGetenv)
	if err != nil {
		t.Fatal(err)
	}
	before := c.Hash()
	c.Listen = "127.0.0.1:9999"
	shown, err := c.Redacted()
	if err != nil || !strings.Contains(string(shown), "listen: 127.0.0.1:9999\n") {
		t.Errorf("got %v and\n%s\nwant the address that replaced ${PORT}", err, shown)
	}
	if c.Hash() == before {
		t.Errorf("Hash: got %s before and after the change, want another", before)
	}
	c.Admin.Listen = "0.0.0.0:9999"
	if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "admin.listen") {
		t.Errorf("Validate with one port for both listeners: got %v, want an error that names admin.listen", err)
	}
}

func TestWarningsNameWhatHasNoEffect(t *testing.T) {
	const engines = "engines: [{local: {replicas: 1}}]"
	for yaml, want := range map[string]string{
		"models: [{name: m, " + engines + "}]":                                                         "",
		"models: [{name: m, " + engines + "}]\nlimits: {mode: auto}":                                   "",
		"models: [{name: m, " + engines + ", queue: {max_length: 5}}]\nlimits: {mode: auto}":           "models[0].queue.max_length: 5",
		"models: [{name: m, " + engines + ", queue: {max_wait: 2h}}]":                                  "models[0].queue.max_wait: 2h0m0s",
		"models: [{name: m, " + engines + ", queue: {max_wait: 2h}, timeouts: {request: 3h}}]":         "",
		"models: [{name: m, " + engines + "}]\nkeys: [{name: k, key: '${K}', queue: {max_wait: 70m}}]": "keys[0].queue.max_wait: 1h10m0s",
	} {
		c, err := Parse("t.yaml", []byte(yaml), func(string) (string, bool) { return "secret-K-0123456789", true })
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(c.Warnings(), "\n"); want == "" && got != "" || !strings.HasPrefix(got, want) {
			t.Errorf("%s\nwarns %q, want %q", yaml, got, want)
		}
	}
}
