package harness

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// restReplica is what must be zero of a replica at rest.
type restReplica struct {
	ID           string `json:"id"`
	InFlight     int    `json:"in_flight"`
	Streams      int    `json:"streams"`
	Waiting      int    `json:"waiting"`
	QueuedTokens int    `json:"queued_tokens"`
	KVInFlight   int    `json:"kv_in_flight"`
}

// restLimits is what must be zero of the limits and queues at rest.
type restLimits struct {
	Keys []struct {
		Key     string `json:"key"`
		Waiting int    `json:"waiting"`
		Running int    `json:"running"`
		Limits  []struct {
			UnderWay int `json:"under_way"`
			Running  int `json:"running"`
			Input    int `json:"reserved_input_tokens"`
			Output   int `json:"reserved_output_tokens"`
		} `json:"limits"`
	} `json:"keys"`
}

// AtRest is nil when nothing of any request is left in the gateway whose admin
// listener that is: no slot, stream, queued token, concurrency slot,
// reservation or waiting request.
func AtRest(admin string) error {
	rs, err := AdminGet[[]restReplica](admin, "/replicas")
	if err != nil {
		return err
	}
	for _, r := range rs {
		if r != (restReplica{ID: r.ID}) {
			return fmt.Errorf("replica %+v", r)
		}
	}
	l, err := AdminGet[restLimits](admin, "/limits")
	if err != nil {
		return err
	}
	for _, k := range l.Keys {
		if k.Waiting != 0 || k.Running != 0 {
			return fmt.Errorf("key %+v", k)
		}
		for _, s := range k.Limits {
			if s.UnderWay != 0 || s.Running != 0 || s.Input != 0 || s.Output != 0 {
				return fmt.Errorf("key %+v", k)
			}
		}
	}
	return nil
}

// adminTimeout bounds a question to the admin listener.
const adminTimeout = 30 * time.Second

// AdminGet reads JSON from the admin listener.
func AdminGet[T any](admin, path string) (v T, err error) {
	resp, err := (&http.Client{Timeout: adminTimeout}).Get(admin + path)
	if err != nil {
		return v, err
	}
	defer resp.Body.Close()
	return v, json.NewDecoder(resp.Body).Decode(&v)
}

// Metrics is the gateway's page: name → labels → value.
type Metrics map[string]map[string]float64

// ReadMetrics reads the page of the gateway whose admin listener that is.
func ReadMetrics(admin string) (Metrics, error) {
	resp, err := (&http.Client{Timeout: adminTimeout}).Get(admin + "/metrics")
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	page := Metrics{}
	for line := range strings.Lines(string(raw)) {
		at := strings.LastIndexByte(strings.TrimSpace(line), ' ')
		if strings.HasPrefix(line, "#") || at < 0 {
			continue
		}
		name, labels, _ := strings.Cut(line[:at], "{")
		var v float64
		if _, err := fmt.Sscan(line[at:], &v); err != nil {
			continue
		}
		if page[name] == nil {
			page[name] = map[string]float64{}
		}
		page[name][strings.TrimSuffix(labels, "}")] = v
	}
	return page, nil
}

// Sum is a metric's sum over all labels.
func (m Metrics) Sum(name string) float64 {
	sum := 0.0
	for _, v := range m[name] {
		sum += v
	}
	return sum
}
