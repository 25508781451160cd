package bench

import (
	"context"
	"fmt"
	"math"
	"net/http"
)

// scale says how many tokens a prompt of so many words has at an endpoint:
// what its template adds, and the tokens of a word.
type scale struct {
	template, perWord float64
	// exact are lengths that were tried: tokens wanted → words.
	exact map[int]int
}

// wordsFor is how many words make a prompt of n tokens, at least one.
func (s *scale) wordsFor(n int) int {
	if w, ok := s.exact[n]; ok {
		return w
	}
	return max(1, int(math.Round((float64(n)-s.template)/s.perWord)))
}

// wordsIn is how many words make n tokens in the middle of a prompt.
func (s *scale) wordsIn(n int) int { return max(1, int(math.Round(float64(n)/s.perWord))) }

// tokensOf is how many tokens a prompt of so many words has.
func (s *scale) tokensOf(words int) int {
	return int(math.Round(s.template + s.perWord*float64(words)))
}

const (
	// fewWords and manyWords are the prompts that tell template and words apart.
	fewWords, manyWords = 16, 272
	// calibrationTries bounds the prompts that are sent to get a length right.
	calibrationTries = 3
)

// calibrate learns the scale from the usage that the endpoint reports, and
// whether it takes ignore_eos. lengths are the prompts' lengths to come.
func (e *Endpoint) calibrate(ctx context.Context, seed uint64, lengths []int) error {
	few, err := e.measure(ctx, seed, fewWords)
	if err != nil {
		return err
	}
	many, err := e.measure(ctx, seed, manyWords)
	if err != nil {
		return err
	}
	if few <= 0 || many <= few {
		return fmt.Errorf("endpoint %s: %d words are %d tokens and %d words %d, by its own usage: cannot calibrate; --calibrate=false takes a token for a word",
			e.Name, fewWords, few, manyWords, many)
	}
	e.scale.perWord = float64(many-few) / (manyWords - fewWords)
	e.scale.template = float64(few) - e.scale.perWord*fewWords
	e.scale.exact = map[int]int{}
	for _, n := range lengths {
		if err := e.calibrateAt(ctx, seed, n); err != nil {
			return err
		}
	}
	return nil
}

// calibrateAt finds how many words make a prompt of n tokens, to within one in
// two hundred.
func (e *Endpoint) calibrateAt(ctx context.Context, seed uint64, n int) error {
	if _, done := e.scale.exact[n]; done {
		return nil
	}
	w := e.scale.wordsFor(n)
	for range calibrationTries {
		got, err := e.measure(ctx, seed, w)
		if err != nil {
			return err
		}
		if math.Abs(float64(got-n)) <= max(1, float64(n)/200) {
			break
		}
		w = max(1, w+int(math.Round(float64(n-got)/e.scale.perWord)))
	}
	e.scale.exact[n] = w
	return nil
}

// measure sends a prompt of so many words and returns the prompt tokens that
// the endpoint reports.
func (e *Endpoint) measure(ctx context.Context, seed uint64, words int) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, prepareTimeout)
	defer cancel()
	text := e.vocab.source(seed, e.number<<56|1<<55|uint64(words)).append(nil, words)
	for {
		r := wire{endpoint: e, messages: []message{{"user", text}}, output: 1, ignoreEOS: e.ignoreEOS}
		s := e.send(ctx, &r)
		switch {
		case s.kind == "":
			return s.in, nil
		case s.status == http.StatusBadRequest && e.ignoreEOS:
			e.ignoreEOS = false // hosted endpoints refuse what OpenAI's API does not have
		case s.status == http.StatusTooManyRequests && wait(ctx, max(s.retryAfter, minRetry)):
		default:
			return 0, fmt.Errorf("endpoint %s refuses a prompt of %d words: %s %s: %s", e.Name, words, s.kind, s.code, s.message)
		}
	}
}
