package sched

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// Profile is the pace and the size of one rank. A step that computes n prompt
// tokens and decodes for b sequences takes
//
//	Base + PerRoot·√b + PerToken·n
//
// and a request reaches the scheduler Latency after it came. √b: a step reads
// the weights of more experts the more sequences there are, with diminishing
// growth.
type Profile struct {
	Name     string
	Latency  time.Duration
	Base     time.Duration
	PerRoot  time.Duration
	PerToken time.Duration

	Chunk      int // prompt tokens of one step, beside one token of each decoding sequence
	KVTokens   int
	PageSize   int
	MaxRunning int
	ContextLen int
}

// The profiles' names.
const (
	Instant   = "instant"
	Qwen3     = "qwen3-30b"
	GLM52     = "glm52-dp4"
	burstSize = 256 // tokens that a step of Instant generates over all sequences
)

// Profiles lists the profiles; the first is the default.
//
// The two timed ones are fitted to measurements of real deployments, one rank
// each, to within 15 % of every figure (see TestProfilesReproduceTheMeasuredRows):
//
// qwen3-30b: Qwen3-30B-A3B FP8 on one GPU, 512 tokens in and 128 out, eight at
// a time. A decode step of eight sequences took 54.7 ms (TPOT 55.8 and 54.6 ms,
// the server's own figure 52 ms), of which the share that grows with the batch
// is not known from one batch size and taken as a twentieth at eight. Eight
// prompts, 4,096 tokens, took 0.40 and 0.44 s in the mean: less the step itself
// 0.36 s or 88 µs a token.
//
// glm52-dp4: GLM-5.2 NVFP4 on four GPUs as four data-parallel ranks, each a
// quarter of the load. One sequence decodes at 12.8 ms a token, so Base + PerRoot
// = 12.8 ms; 512 at once (128 a rank, 256 in and 256 out) reach 11,052 tokens a
// second over 11.9 s. Of those, prefill takes 32,768 tokens a rank and the rest
// is 255 steps at 128: 31 to 32 ms, so PerRoot is about 1.8 ms. Sixteen prompts
// of 8,192 tokens with 256 out take 7.7 s, and 929 of them with 1,024 out 230 s:
// 32,768 and 1.9 million prompt tokens a rank, which agree best at 98 µs a
// token. A single request's first token comes after 240 ms, of which 256 tokens
// and the step explain 37: the rest is Latency.
func Profiles() []Profile {
	return []Profile{
		{Name: Instant, Chunk: 8192, KVTokens: 1 << 20, PageSize: 1, MaxRunning: 256, ContextLen: 1 << 17},
		{
			Name: Qwen3, Latency: 8 * time.Millisecond, Base: 52 * time.Millisecond, PerRoot: 950 * time.Microsecond,
			PerToken: 88 * time.Microsecond, Chunk: 8192, KVTokens: 1080523, PageSize: 1, MaxRunning: 2110, ContextLen: 262144,
		},
		{
			Name: GLM52, Latency: 203 * time.Millisecond, Base: 11 * time.Millisecond, PerRoot: 1800 * time.Microsecond,
			PerToken: 98 * time.Microsecond, Chunk: 4096, KVTokens: 2328128, PageSize: 64, MaxRunning: 256, ContextLen: 1 << 20,
		},
	}
}

// ProfileNamed finds a profile; "" is the first.
func ProfileNamed(name string) (Profile, error) {
	all := Profiles()
	if name == "" {
		return all[0], nil
	}
	i := slices.IndexFunc(all, func(p Profile) bool { return p.Name == name })
	if i < 0 {
		var names []string
		for _, p := range all {
			names = append(names, p.Name)
		}
		return Profile{}, fmt.Errorf("profile %q: expected %s", name, strings.Join(names, ", "))
	}
	return all[i], nil
}

// timed tells whether steps take time at all.
func (p *Profile) timed() bool { return p.Base > 0 || p.PerToken > 0 || p.PerRoot > 0 }

// decode is the time of a step for b decoding sequences alone.
func (p *Profile) decode(b int) time.Duration {
	return p.Base + time.Duration(float64(p.PerRoot)*math.Sqrt(float64(b)))
}

// prefill is the time that n prompt tokens add to a step.
func (p *Profile) prefill(n int) time.Duration { return time.Duration(n) * p.PerToken }

// Scaled is the profile f times as fast.
func (p Profile) Scaled(f float64) Profile {
	for _, d := range []*time.Duration{&p.Latency, &p.Base, &p.PerRoot, &p.PerToken} {
		*d = time.Duration(float64(*d) / f)
	}
	return p
}
