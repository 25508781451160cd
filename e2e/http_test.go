package e2e

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"testing"
	"time"
)

// answer is an HTTP answer, read whole.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// apiError is an error as OpenAI writes it.
type apiError struct {
	Error struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    *string `json:"code"`
	} `json:"error"`
}

func post(t *testing.T, url, body string, headers ...string) answer {
	t.Helper()
	return do(t, http.MethodPost, url, body, headers...)
}

// do sends one request; headers are names and values in turn.
func do(t *testing.T, method, url, body string, headers ...string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, bytes.NewReader([]byte(body)))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := (&http.Client{Timeout: time.Minute}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%s %s: %d and then %v after %q", method, url, resp.StatusCode, err, all)
	}
	return answer{resp.StatusCode, resp.Header, all}
}

func decode[T any](t *testing.T, raw []byte) T {
	t.Helper()
	var v T
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatalf("%v in %.500s", err, raw)
	}
	return v
}

// replica is what the tests read of GET /replicas.
type replica struct {
	ID           string   `json:"id"`
	Model        string   `json:"model"`
	State        string   `json:"state"`
	InFlight     int      `json:"in_flight"`
	IndexBlocks  int      `json:"index_blocks"`
	Requests     int      `json:"requests_total"`
	HitPredicted *float64 `json:"hit_predicted"`
	HitActual    *float64 `json:"hit_actual"`
}

// replicas asks the admin listener.
func replicas(t *testing.T, admin string) []replica {
	t.Helper()
	a := do(t, http.MethodGet, admin+"/replicas", "")
	if a.status != http.StatusOK {
		t.Fatalf("GET /replicas: %d %s", a.status, a.body)
	}
	return decode[[]replica](t, a.body)
}
