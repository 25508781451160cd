// Package scripted is an upstream that answers what a test asks it to: all
// that OpenAI's API knows and the local engine does not do (tools, schemas,
// images, reasoning, the responses and messages routes), and ways to be slow,
// busy or dead.
//
// The last user message (or the prompt, or the input) chooses the script: its
// first word after "script:", or plain echo. Parts, in reading order:
//
//   - server.go: the routes, what was asked last, how many are being answered
//   - chat.go: chat completions
//   - others.go: completions, embeddings, models, responses, messages
//   - trouble.go: being slow, busy or dead
package scripted
