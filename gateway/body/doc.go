// Package body reads a request body where it lies and changes it without encoding it again.
//
// [Parse] fills a [View] in one pass over the bytes: what the gateway acts on, decoded, and where in the body
// it stands. Everything else is validated as JSON and passed over. [View.Key] feeds the prompt to the router's
// key; [Edits] set, replace or delete fields and come out as [Segments], pieces of the old body and the new
// values between them. A View, an Edits and a Segments are reused from request to request and then allocate
// nothing; none of them may be used by two goroutines at once, and none outlives the body it looks at.
//
// What is refused: text that is no JSON, nesting beyond scan.MaxDepth, a field that the gateway reads given
// twice or spelled with escapes (parsers disagree on which one counts, so a limit could be walked round), one
// of a wrong type or out of range. Unknown fields pass, whatever they hold.
//
// In reading order: error.go (the refusals), field.go (the fields acted on), view.go (the view), parse.go (the
// body's own members), prompt.go (prompts in their forms), message.go (messages and their parts), key.go (the
// prompt as the router's key), edit.go (edits and segments), multipart.go (forms); scan/ is the JSON scanner underneath.
package body
