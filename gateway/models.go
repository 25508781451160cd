package gateway

import (
	"encoding/json"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/valyala/fasthttp"
)

// modelObject is one model as /v1/models lists it, with the fields that vLLM
// and SGLang add.
type modelObject struct {
	ID          string  `json:"id"`
	Object      string  `json:"object"`
	Created     int64   `json:"created"`
	OwnedBy     string  `json:"owned_by"`
	Root        string  `json:"root,omitempty"`
	Parent      *string `json:"parent"`
	MaxModelLen *int    `json:"max_model_len"`
}

type modelList struct {
	Object string        `json:"object"`
	Data   []modelObject `json:"data"`
}

func (e modelEntry) object() modelObject {
	m := modelObject{ID: e.id, Object: "model", Created: e.created.Unix(), OwnedBy: "penstock", Root: e.root, Parent: nullable(e.parent)}
	if e.maxModelLen > 0 {
		m.MaxModelLen = new(e.maxModelLen)
	}
	return m
}

// listModels answers /v1/models with what the key may use.
func (s *Server) listModels(r *request) {
	if err := r.who(); err != nil {
		r.fail(err)
		return
	}
	list := modelList{Object: "list", Data: []modelObject{}}
	for _, e := range s.pools.current.Load().seenBy(r.client) {
		list.Data = append(list.Data, e.object())
	}
	r.answer(fasthttp.StatusOK, list)
}

// oneModel answers /v1/models/{id}; ids may hold slashes, escaped or not.
func (s *Server) oneModel(r *request) {
	if err := r.who(); err != nil {
		r.fail(err)
		return
	}
	raw := strings.TrimPrefix(string(r.ctx.URI().PathOriginal()), modelsPrefix)
	id, err := url.PathUnescape(raw)
	if err != nil {
		r.fail(invalid("invalid_value", "model", "The model's name %q is not a valid path.", clip(raw, 200)))
		return
	}
	t := s.pools.current.Load()
	e, ok := t.entry(id)
	switch {
	case !ok:
		r.fail(modelNotFound(id, t.seenBy(r.client)))
	case !r.client.mayUse(t.names[id], id):
		r.fail(notAllowed(r.client, id))
	default:
		r.answer(fasthttp.StatusOK, e.object())
	}
}

func notAllowed(c *client, model string) *Error {
	return &Error{
		Status: fasthttp.StatusForbidden, Type: typeInvalid, Code: "model_not_allowed", Param: "model",
		Message: "The key " + c.name + " may not use the model '" + clip(model, 200) + "' (keys[].models).",
	}
}

// who identifies the client of a request that needs nothing else.
func (r *request) who() (err error) {
	r.client, err = r.snap.identify(r.ctx, r.start)
	return err
}

// answer ends the request with a JSON value of the gateway's own.
func (r *request) answer(status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		r.fail(internalError(err))
		return
	}
	r.ctx.SetStatusCode(status)
	r.ctx.SetContentType("application/json")
	r.ctx.SetBody(b)
	r.record.status = status
	r.limitHeaders(nil)
	r.ownHeaders()
	r.settle(time.Now())
}

// ModelSummary is a model and its replicas, for the ready message.
type ModelSummary struct {
	Name     string   `json:"name"`
	Replicas []string `json:"replicas"`
}

// Models is what is served now.
func (s *Server) Models() []ModelSummary {
	var out []ModelSummary
	for _, pl := range s.pools.all() {
		m := ModelSummary{Name: pl.name}
		for _, r := range pl.router.Replicas() {
			m.Replicas = append(m.Replicas, r.ID())
		}
		slices.Sort(m.Replicas)
		out = append(out, m)
	}
	return out
}
