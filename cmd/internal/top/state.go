package top

import "time"

// state is the part of an update of GET /events that is shown.
type state struct {
	Time      time.Time `json:"time"`
	Version   string    `json:"version"`
	StartedAt time.Time `json:"started_at"`
	Summary   struct {
		Level string `json:"level"`
		Text  string `json:"text"`
	} `json:"summary"`
	Replicas []replica `json:"replicas"`
	Limits   struct {
		Keys   []key   `json:"keys"`
		Queues []queue `json:"queues"`
	} `json:"limits"`
	KeysTotal int       `json:"keys_total"`
	Trouble   []trouble `json:"trouble"`
	Point     point     `json:"point"`
}

type replica struct {
	ID            string   `json:"id"`
	State         string   `json:"state"`
	Usable        bool     `json:"usable"`
	InFlight      int      `json:"in_flight"`
	Waiting       int      `json:"waiting"`
	KVTokens      int      `json:"kv_tokens"`
	KVInFlight    int      `json:"kv_in_flight"`
	RequestsTotal uint64   `json:"requests_total"`
	FailuresTotal int64    `json:"failures_total"`
	HitActual     *float64 `json:"hit_actual"`
	FirstTokenMS  *spread  `json:"first_token_ms"`
	Load          *struct {
		UsedTokens int `json:"used_tokens"`
	} `json:"load"`
}

type spread struct{ P50, P95 float64 }

type key struct {
	Key      string           `json:"key"`
	Running  int              `json:"running"`
	Waiting  int              `json:"waiting"`
	Refusals map[string]int64 `json:"refusals"`
	Limits   []struct {
		Model       string `json:"model"`
		Running     int64  `json:"running"`
		Concurrency int64  `json:"concurrency"`
		Rates       []struct {
			Kind  string `json:"kind"`
			Burst int64  `json:"burst"`
			Used  int64  `json:"used"`
		} `json:"rates"`
	} `json:"limits"`
}

type queue struct {
	Model     string  `json:"model"`
	Waiting   int     `json:"waiting"`
	MaxLength int     `json:"max_length"`
	OldestMS  float64 `json:"oldest_ms"`
}

type trouble struct {
	Level string    `json:"level"`
	Title string    `json:"title"`
	Text  string    `json:"text"`
	Key   string    `json:"key"`
	Count int       `json:"count"`
	Last  time.Time `json:"last"`
}

type point struct {
	Requests float64  `json:"requests"`
	Refused  float64  `json:"refused"`
	Failed   float64  `json:"failed"`
	Input    float64  `json:"input"`
	Cached   float64  `json:"cached"`
	Output   float64  `json:"output"`
	First    *spread  `json:"first_token_ms"`
	Hit      *float64 `json:"hit_actual"`
}
