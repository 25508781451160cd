package gateway

import (
	"cmp"
	"slices"
	"time"
)

const (
	// troubleAge is how long ago a refusal or an error may be and still be shown.
	troubleAge = 15 * time.Minute
	// shownTrouble bounds the list.
	shownTrouble = 20
)

// trouble is something that is wrong, or went wrong lately: what happened, in
// plain words, and what to do about it.
type trouble struct {
	Level   string    `json:"level"` // bad, warn or note
	Title   string    `json:"title"`
	Text    string    `json:"text,omitempty"`
	Advice  string    `json:"advice,omitempty"`
	Code    string    `json:"code,omitempty"`
	Key     string    `json:"key,omitempty"`
	Model   string    `json:"model,omitempty"`
	Replica string    `json:"replica,omitempty"`
	Count   int       `json:"count,omitempty"` // requests; 0: it is so now
	Last    time.Time `json:"last"`
	Request string    `json:"request_id,omitempty"` // one of them
}

// standing is what is wrong now, apart from requests; never nil.
func (s *Server) standing(o *statusObject) []trouble {
	out := []trouble{}
	for i := range o.Replicas {
		if t, ok := replicaTrouble(&o.Replicas[i], o.Time); ok {
			out = append(out, t)
		}
	}
	if e := s.reloadTrouble.Load(); e != nil {
		out = append(out, trouble{
			Level: levelBad, Title: "The changed configuration was refused", Text: e.Reason, Last: e.Time,
			Advice: "The one before it stays in force. 'penstock check --config FILE' names each mistake; correct the file, and it is read again.",
		})
	}
	if m := s.limiter.Mode(); m.Degraded() {
		out = append(out, trouble{
			Level: levelWarn, Title: "Redis does not answer", Last: o.Time,
			Text:   "Limits are counted as redis.on_error says: " + m.String() + ".",
			Advice: "Requests are not held up. Bring Redis back; shared counting resumes by itself.",
		})
	}
	return out
}

// replicaTrouble is what is wrong with a replica now.
func replicaTrouble(r *replicaObject, now time.Time) (trouble, bool) {
	t := trouble{Level: levelBad, Replica: r.ID, Model: r.Model, Last: now}
	if r.Down != nil {
		t.Text, t.Last = r.Down.Reason, r.Down.Time
	}
	switch r.State {
	case "unhealthy":
		t.Title = "Replica " + r.ID + " does not answer"
		t.Advice = "Look whether its engine runs and can be reached at " + r.URL + ". The others carry its load; it is taken back by itself."
	case "open", "half_open":
		t.Level, t.Title = levelWarn, "Replica "+r.ID+" failed too often and is being spared"
		if r.LastFailure != nil {
			t.Text, t.Last = "Its last failure: "+failureWords(r.LastFailure.Reason)+".", r.LastFailure.Time
		}
		t.Advice = "Its engine's own log says why it fails. A few requests try it again every few seconds."
	case "starting":
		t.Level, t.Title = levelNote, "Replica "+r.ID+" has not answered yet"
		t.Advice = "A model may take minutes to load. If it stays so, look whether its engine runs and can be reached at " + r.URL + "."
	default:
		if r.RanksIgnored {
			t.Level, t.Title = levelWarn, "Replica "+r.ID+" does not let its data-parallel ranks be chosen"
			t.Advice = "It is used as one replica, and affinity within it is lost: docs/engines.md lists which versions can."
			return t, true
		}
		return t, false
	}
	return t, true
}

// failureWords is a reason for which an attempt failed, in words.
func failureWords(reason string) string {
	switch reason {
	case "connect":
		return "it could not be connected to"
	case "status":
		return "it answered with an error of its own"
	case "overloaded":
		return "it said that it is overloaded"
	case "disconnected":
		return "it closed the connection in the middle of an answer"
	case "timeout":
		return "it did not answer in time"
	case "unhealthy":
		return "it was found unhealthy while it had the request"
	case "protocol":
		return "its answer could not be understood"
	case "event":
		return "its stream began with an error"
	}
	return reason
}

// broke is record.broke of a remembered request.
func (e *explanation) broke() bool { return e.Status >= 500 || e.Status < 400 && e.Code != "" }

// pastTrouble is what the last requests were refused or failed for: equal ones
// are one entry, the gravest and then the latest first.
func pastTrouble(l *recent, now time.Time) []trouble {
	failed := l.last(keptRequests, func(e *explanation) bool {
		return (e.Status >= 400 || e.Code != "") && now.Sub(e.end()) < troubleAge
	})
	type kind struct{ code, key, model, replica string }
	at := map[kind]int{}
	out := []trouble{}
	for i := range failed { // the newest first
		e := &failed[i]
		k := kind{code: e.Code, key: e.Key, model: e.Model}
		if e.broke() {
			k.replica = e.Replica
		}
		if n, ok := at[k]; ok {
			out[n].Count++
			continue
		}
		at[k] = len(out)
		a := adviceFor(e.Code)
		out = append(out, trouble{
			Level: a.level, Title: a.title, Text: e.Message, Advice: a.todo, Code: e.Code,
			Key: k.key, Model: k.model, Replica: k.replica, Count: 1, Last: e.end(), Request: e.ID,
		})
	}
	rank := func(t trouble) int { return slices.Index([]string{levelBad, levelWarn, levelNote}, t.Level) }
	slices.SortStableFunc(out, func(a, b trouble) int { return cmp.Compare(rank(a), rank(b)) })
	return out[:min(len(out), shownTrouble)]
}
