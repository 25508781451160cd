package gateway

import (
	"bytes"
	"strings"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/valyala/fasthttp"

	"penstock/router"
)

// maxResponses bounds the stored responses whose replica is remembered.
const maxResponses = 65536

// responseOwners remembers which replica made a response of /v1/responses, so
// that a later request that names it reaches the engine that stored it.
type responseOwners struct {
	ids *lru.Cache[string, responseOwner]
}

type responseOwner struct {
	member *member
	client string
}

func newResponseOwners() *responseOwners {
	ids, err := lru.New[string, responseOwner](maxResponses)
	if err != nil { // only for a size below 1
		panic(err)
	}
	return &responseOwners{ids: ids}
}

// owner is the replica that made the response, for the client that asked for it.
func (o *responseOwners) owner(id, client string) (*member, bool) {
	w, ok := o.ids.Get(id)
	if !ok || w.client != client {
		return nil, false
	}
	if _, there := (*w.member.pool.members.Load())[w.member.route]; !there {
		return nil, false
	}
	return w.member, true
}

func (o *responseOwners) add(id string, m *member, client string) {
	o.ids.Add(id, responseOwner{member: m, client: client})
}

// responseID is the id in /v1/responses/{id} and /v1/responses/{id}/cancel.
func responseID(path []byte) string {
	id, _, _ := strings.Cut(strings.TrimPrefix(string(path), responsesPrefix), "/")
	return id
}

func responseNotFound(id string) *Error {
	return &Error{
		Status: fasthttp.StatusNotFound, Type: typeInvalid, Code: "response_not_found", Param: "previous_response_id",
		Message: "No replica here has the response '" + clip(id, 100) + "'. It was never made here, is too old, or its replica is gone.",
	}
}

// followResponse limits a request that continues a stored response to the
// replica that has it.
func (r *request) followResponse() error {
	id := string(r.look.view.PreviousResponseID)
	if id == "" {
		return nil
	}
	m, ok := r.s.responses.owner(id, r.client.name)
	if !ok || m.pool != r.target.pool {
		return responseNotFound(id)
	}
	r.owner = m.route
	return nil
}

// rememberResponse notes who made the response that is on its way: its id
// stands at the beginning of the answer, streamed or not.
func (a *attempt) rememberResponse(head []byte) {
	const mark = `"id":"resp_`
	flat := head[:min(len(head), 4096)]
	at := bytes.Index(flat, []byte(mark))
	if at < 0 {
		at = bytes.Index(flat, []byte(`"id": "resp_`))
		if at < 0 {
			return
		}
		at++
	}
	id := flat[at+len(mark)-len("resp_"):]
	if end := bytes.IndexByte(id, '"'); end > 0 {
		a.r.s.responses.add(string(id[:end]), a.member, a.r.client.name)
	}
}

// onlyOwner is the choice of a request that continues a stored response.
func (r *request) onlyOwner(route *router.Replica) bool { return route == r.owner }
