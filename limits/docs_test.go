package limits

import (
	"errors"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"penstock/configs"
)

// documentation is docs/limits.md with its line breaks and quotation marks of
// quotes taken out.
func documentation(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("../docs/limits.md")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(strings.Fields(strings.ReplaceAll(string(b), "\n> ", "\n")), " ")
}

func wantDocumented(t *testing.T, doc string, f *Refusal) {
	t.Helper()
	if f == nil || !strings.Contains(doc, f.Error()) {
		t.Errorf("docs/limits.md does not hold this message of its example:\n%v", f)
	}
}

// TestWorkedExamplesAreTrue plays the examples of docs/limits.md.
func TestWorkedExamplesAreTrue(t *testing.T) {
	doc := documentation(t)
	now := epochTime()
	reserve := func(l *Limiter, key string, lim *configs.Limits, in, out int64) (*Reservation, *Refusal) {
		r, err := l.Reserve(t.Context(), now, &Request{Key: key, Model: "glm-5.2", KeyLimits: lim, Cost: Cost{1, in, out}})
		f, _ := errors.AsType[*Refusal](err)
		return r, f
	}
	l := memoryLimiter(t)
	acme := &configs.Limits{TokensPerMinute: 200_000}
	for i := range 36 {
		_, f := reserve(l, "acme", acme, 1500, 4096)
		if (f != nil) != (i == 35) {
			t.Fatalf("acme: request %d: %v, want the 36th refused", i+1, f)
		}
		if f != nil {
			wantDocumented(t, doc, f)
			if f.RetryAfterSeconds() != "1" || f.RetryAfterMillis() != "437" {
				t.Errorf("acme: Retry-After %s and %s ms, want 1 and 437", f.RetryAfterSeconds(), f.RetryAfterMillis())
			}
		}
	}
	lab := &configs.Limits{TokensPerMinute: 60_000}
	r, _ := reserve(l, "lab", lab, 40_000, 512)
	r.Settle(now, Actual{OutcomeDone, 40_000, 30_512})
	_, f := reserve(l, "lab", lab, 1000, 0)
	wantDocumented(t, doc, f)
	_, f = reserve(l, "tiny", &configs.Limits{TokensPerMinute: 10_000}, 12_000, 100)
	wantDocumented(t, doc, f)
}

// TestWorkedExampleOfTheQueueIsTrue is the one with a key's concurrency of 64.
func TestWorkedExampleOfTheQueueIsTrue(t *testing.T) {
	doc := documentation(t)
	synctest.Test(t, func(t *testing.T) {
		l := memoryLimiter(t)
		q := NewQueue("glm-5.2", configs.Queue{MaxWait: 30 * time.Second}, nil)
		e := &engineSlots{free: 63}
		ends := make(chan error, 200)
		for range 200 {
			r, err := l.Reserve(t.Context(), time.Now(), &Request{Key: "eval", Model: "glm-5.2", KeyLimits: &configs.Limits{Concurrency: 64}})
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				ends <- q.Acquire(t.Context(), &Ticket{Item: Item{Key: "eval"}, Binder: bindFunc(e.bind), Reservation: r})
			}()
		}
		kinds := map[string]int{}
		for range 200 {
			err := <-ends
			f, refused := errors.AsType[*Refusal](err)
			if !refused {
				kinds["bound"]++
				continue
			}
			kinds[f.Kind.String()]++
			if f.Kind == KindQueueTimeout {
				f.RetryAfter = 5 * time.Second // it is jittered
			}
			wantDocumented(t, doc, f)
		}
		if kinds["bound"] != 63 || kinds["queue_timeout"] != 1 || kinds["concurrency"] != 136 {
			t.Errorf("ends %v, want 63 bound, 1 without room and 136 by the key's concurrency", kinds)
		}
	})
}
