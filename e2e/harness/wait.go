package harness

import (
	"fmt"
	"net/http"
	"testing"
	"time"
)

// Eventually polls ok every few milliseconds until it returns nil, and fails
// the test with its last error once the time is over.
func Eventually(t testing.TB, within time.Duration, what string, ok func() error) {
	t.Helper()
	if err := poll(within, ok); err != nil {
		t.Fatalf("%s: not within %v: %v", what, within, err)
	}
}

func poll(within time.Duration, ok func() error) error {
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ok()
		if err == nil {
			return nil
		}
		select {
		case <-deadline.C:
			return err
		case <-tick.C:
		}
	}
}

// answers returns nil if a GET of the URL is answered with 200.
func answers(url string) error {
	resp, err := (&http.Client{Timeout: 2 * time.Second}).Get(url)
	if err != nil {
		return err
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", url, resp.Status)
	}
	return nil
}
