package limits

import (
	"math"
	"sync"
)

// Size is what is known of a request's input before it is sent.
type Size struct {
	// Bytes of prompt text: messages, tools, prompt strings.
	Bytes int
	// Tokens of prompts given as token ids: exact.
	Tokens int
	// Media are image, audio and file parts.
	Media int
}

// Estimator learns how many tokens a model makes of so many bytes and of a
// media part, from the usage that its engines report. Any number of goroutines
// may use it.
type Estimator struct {
	perMedia float64

	mu     sync.Mutex
	models map[string]*ratio
}

const (
	// firstBytesPerToken is assumed of a model until it is learned.
	firstBytesPerToken = 4.0
	// firstWeight is how many tokens that assumption counts for.
	firstWeight = 512.0
	// maxSeen bounds the tokens remembered, so that the newest million decide.
	maxSeen = 1 << 20
	// maxModels bounds the models learned; beyond, unknown ones use the first guess.
	maxModels = 1024
)

// ratio is what one model has shown.
type ratio struct {
	bytes, tokens float64
	media, parts  float64 // tokens of media, number of them
}

// NewEstimator makes an Estimator that counts tokensPerMedia (default 1000) for
// each media part until it knows better.
func NewEstimator(tokensPerMedia int) *Estimator {
	if tokensPerMedia <= 0 {
		tokensPerMedia = 1000
	}
	return &Estimator{perMedia: float64(tokensPerMedia), models: make(map[string]*ratio)}
}

// BytesPerToken is the model's learned ratio, 4 at first.
func (e *Estimator) BytesPerToken(model string) float64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.models[model].bytesPerToken()
}

// TokensPerMedia is what a media part of the model's counts.
func (e *Estimator) TokensPerMedia(model string) float64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.models[model].tokensPerMedia(e.perMedia)
}

func (r *ratio) bytesPerToken() float64 {
	if r == nil {
		return firstBytesPerToken
	}
	return (r.bytes + firstWeight*firstBytesPerToken) / (r.tokens + firstWeight)
}

func (r *ratio) tokensPerMedia(first float64) float64 {
	if r == nil {
		return first
	}
	return (r.media + first) / (r.parts + 1)
}

// Input estimates the input tokens of a request.
func (e *Estimator) Input(model string, s Size) int64 {
	e.mu.Lock()
	r := e.models[model]
	text, media := r.bytesPerToken(), r.tokensPerMedia(e.perMedia)
	e.mu.Unlock()
	return estimate(s, text, media)
}

func estimate(s Size, bytesPerToken, perMedia float64) int64 {
	t := float64(s.Tokens) + math.Ceil(float64(s.Bytes)/bytesPerToken) + float64(s.Media)*perMedia
	return int64(min(math.Ceil(t), maxTokens))
}

// Learn takes the input tokens that the engine reported for a request and
// returns the error of the estimate that was made of it: estimated ÷ reported.
func (e *Estimator) Learn(model string, s Size, estimated, reported int64) float64 {
	if reported <= 0 {
		return 1
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	r := e.models[model]
	if r == nil && len(e.models) < maxModels {
		r = &ratio{}
		e.models[model] = r
	}
	if r != nil {
		r.learn(s, float64(reported), e.perMedia)
	}
	return float64(estimated) / float64(reported)
}

// learn splits the reported tokens between text and media by what is believed of the text.
func (r *ratio) learn(s Size, reported, perMedia float64) {
	rest := max(0, reported-float64(s.Tokens))
	if s.Media > 0 {
		text := float64(s.Bytes) / r.bytesPerToken()
		r.media += max(0, rest-text)
		r.parts += float64(s.Media)
		if r.parts > 1024 {
			r.media, r.parts = r.media/2, r.parts/2
		}
		return
	}
	if s.Bytes == 0 || rest > float64(s.Bytes) {
		return // more tokens than bytes: they are the template's, or of what was not counted, and say nothing of the text
	}
	r.bytes += float64(s.Bytes)
	r.tokens += rest
	if r.tokens > maxSeen {
		r.bytes, r.tokens = r.bytes/2, r.tokens/2
	}
}
