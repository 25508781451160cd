package engine

import (
	"strconv"
	"strings"
)

// Addressing is how one request is sent to a replica's data-parallel rank.
type Addressing struct {
	// HeaderName and HeaderValue are set on the request; "": no header.
	HeaderName, HeaderValue string
	// BodyField and BodyValue (a JSON number) are set in the body; "": no field.
	BodyField, BodyValue string
	// Ok is false where this engine cannot be told a rank on this endpoint: the
	// request goes to any rank, and must not count as this one's. True without
	// ranks, where nothing need be said.
	Ok bool
}

// RankHeader is the header by which SGLang and vLLM are told a rank.
const RankHeader = "X-Data-Parallel-Rank"

// The body fields by which SGLang is told a rank. The newer name is read by
// 0.5.19 and later, which take the older one too.
const (
	rankField    = "routed_dp_rank"
	rankFieldOld = "data_parallel_rank"
)

// address is the table of docs/engines.md: endpoint × (header, body field).
// What is not in it goes to any rank.
func address(tongue Kind, version, path string, rank int) Addressing {
	n := strconv.Itoa(rank)
	switch tongue {
	case KindSGLang:
		return addressSGLang(version, path, n)
	case KindVLLM:
		return addressVLLM(path, n)
	default:
		return Addressing{}
	}
}

// addressSGLang: chat and completions read the field in all versions and the
// header, which comes first, in newer ones; the others came to it one by one.
func addressSGLang(version, path, rank string) Addressing {
	field := rankField
	if olderThan(version, 0, 5, 19) {
		field = rankFieldOld
	}
	header := Addressing{HeaderName: RankHeader, HeaderValue: rank, Ok: true}
	both := header
	both.BodyField, both.BodyValue = field, rank
	switch path {
	case "/v1/chat/completions", "/v1/completions":
		return both
	case "/v1/messages":
		if !olderThan(version, 0, 5, 19) {
			return header
		}
	case "/v1/responses":
		if !olderThan(version, 0, 5, 23) {
			return header
		}
	case "/generate":
		return Addressing{BodyField: field, BodyValue: rank, Ok: true}
	}
	return Addressing{}
}

func addressVLLM(path, rank string) Addressing {
	switch path {
	case "/v1/chat/completions", "/v1/completions", "/v1/messages":
		return Addressing{HeaderName: RankHeader, HeaderValue: rank, Ok: true}
	default:
		return Addressing{}
	}
}

// olderThan compares the leading numbers of a version such as 0.5.6.post1; an
// unknown version counts as new.
func olderThan(version string, want ...int) bool {
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", len(want)+1)
	for i, w := range want {
		if i >= len(parts) {
			return i > 0
		}
		digits := parts[i]
		if end := strings.IndexFunc(digits, func(r rune) bool { return r < '0' || r > '9' }); end >= 0 {
			digits = digits[:end]
		}
		n, err := strconv.Atoi(digits)
		if err != nil {
			return false
		}
		if n != w {
			return n < w
		}
	}
	return false
}

// rankRefusals are what engines write when they refuse a rank.
var rankRefusals = [...]string{"routed_dp_rank", "data_parallel_rank", "dp_rank"}

// RefusedRank says whether an engine's 400 refuses the data-parallel rank it
// was sent. The request may then be tried elsewhere: it was the gateway's
// mistake, not the client's. The engine is asked at once what ranks it has.
func (r *Replica) RefusedRank(status int, body []byte) bool {
	if status != 400 || r.rank < 0 {
		return false
	}
	e, ok := ReadError(body)
	if !ok {
		return false
	}
	for _, word := range rankRefusals {
		if strings.Contains(e.Message, word) {
			r.server.refusedRank()
			return true
		}
	}
	return false
}
