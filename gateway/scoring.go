package gateway

import "penstock/gateway/body"

// isScoring says that the request asks for the log-probabilities of its prompt.
func isScoring(v *body.View) bool {
	switch {
	case v.Echo && v.Logprobs >= 0:
		return true
	case v.PromptLogprobs >= 0:
		return true
	case v.Endpoint == body.Generate:
		return v.ReturnLogprob && v.LogprobStartLen == 0
	}
	return false
}
