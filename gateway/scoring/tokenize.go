package scoring

import "penstock/gateway/body/scan"

// Detokenized gives an answer of /detokenize the shape that lm-evaluation-harness reads: SGLang writes the text
// as text, vLLM as prompt. It returns b itself where nothing is missing.
func Detokenized(b []byte) []byte {
	i := scan.Space(b, 0)
	if scan.KindAt(b, i) != scan.Obj || scan.Valid(b) != nil || member(b[i:], []byte("prompt")) != nil {
		return b
	}
	text := member(b[i:], []byte("text"))
	if text == nil {
		return b
	}
	out := append(make([]byte, 0, len(b)+len(text)+16), `{"prompt":`...)
	out = append(out, text...)
	out = append(out, ',')
	return append(out, b[i+1:]...)
}
