package e2e

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/ssestream"
	"github.com/openai/openai-go/v3/responses"
	"github.com/openai/openai-go/v3/shared"

	"penstock/e2e/harness"
	"penstock/e2e/scripted"
)

const localModel = "penstock-local"

// goClient is openai-go against the gateway.
type goClient struct {
	openai.Client
	up *scripted.Upstream
}

func newGoClient(gateway *harness.Process, up *scripted.Upstream, key string, more ...option.RequestOption) *goClient {
	options := append([]option.RequestOption{
		option.WithBaseURL(gateway.URL + "/v1"), option.WithAPIKey(key), option.WithMaxRetries(0),
	}, more...)
	return &goClient{openai.NewClient(options...), up}
}

func question(model, text string) openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{
		Model: model, Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage(text)},
		MaxTokens: openai.Int(24), Temperature: openai.Float(0),
	}
}

func (c *goClient) ask(t *testing.T, model, text string, options ...option.RequestOption) (*openai.ChatCompletion, error) {
	t.Helper()
	return c.Chat.Completions.New(t.Context(), question(model, text), options...)
}

// stream reads a whole chat stream: its chunks, their text and its error.
func (c *goClient) stream(t *testing.T, model, text string) (chunks []openai.ChatCompletionChunk, said string, err error) {
	t.Helper()
	s := c.Chat.Completions.NewStreaming(t.Context(), question(model, text))
	chunks, err = drain(s)
	for _, chunk := range chunks {
		for _, choice := range chunk.Choices {
			said += choice.Delta.Content
		}
	}
	return chunks, said, err
}

func drain[T any](s *ssestream.Stream[T]) ([]T, error) {
	defer s.Close()
	var all []T
	for s.Next() {
		all = append(all, s.Current())
	}
	return all, s.Err()
}

// wantError checks status, type and code of an SDK's error.
func wantError(t *testing.T, err error, status int, code string) *openai.Error {
	t.Helper()
	e, ok := errors.AsType[*openai.Error](err)
	if !ok {
		t.Fatalf("got %v, want an *openai.Error %d %s", err, status, code)
	}
	if e.StatusCode != status || e.Code != code {
		t.Errorf("got %d %s (%s), want %d %s", e.StatusCode, e.Code, e.Message, status, code)
	}
	return e
}

func TestGoSDK(t *testing.T) {
	gateway, up, _ := conformance(t)
	c := newGoClient(gateway, up, "key-full")
	keyed := func(key string, more ...option.RequestOption) *goClient {
		return newGoClient(gateway, up, key, more...)
	}

	t.Run("chat streamed and not says the same", c.sameText)
	t.Run("usage only when asked for", c.usage)
	t.Run("completions", c.completions)
	t.Run("embeddings", c.embeddings)
	t.Run("models list and retrieve with a slash", c.models)
	t.Run("unknown fields arrive both ways", c.unknownFields)
	t.Run("tools", c.tools)
	t.Run("json schema", c.schema)
	t.Run("vision parts", c.vision)
	t.Run("reasoning fields", c.reasoning)
	t.Run("responses", c.responses)
	t.Run("raw response headers", func(t *testing.T) { keyed("key-limited").headers(t) })
	t.Run("errors", c.errors)
	t.Run("authentication and permission", func(t *testing.T) {
		_, err := keyed("wrong").ask(t, localModel, "hello")
		wantError(t, err, http.StatusUnauthorized, "invalid_api_key")
		_, err = keyed("key-local-only").ask(t, scripted.Model, "hello")
		wantError(t, err, http.StatusForbidden, "model_not_allowed")
	})
	t.Run("rate limit", func(t *testing.T) { keyed("key-one-a-minute").rateLimit(t) })
	t.Run("truncated streams are errors", c.truncated)
	t.Run("timeout frees the engine", c.timeout)
	t.Run("cancelled stream frees the engine", c.cancelled)
	t.Run("retries after 429", func(t *testing.T) { keyed("key-one-a-second", option.WithMaxRetries(3)).retries429(t) })
	t.Run("retries after 503", func(t *testing.T) {
		answer, err := keyed("key-full", option.WithMaxRetries(4)).ask(t, scripted.Model, "script:busy 4 go")
		if err != nil || !strings.HasSuffix(answer.Choices[0].Message.Content, "busy 4 go") {
			t.Errorf("after four refusals: %v, %v; want an answer", answer, err)
		}
	})
}

func (c *goClient) sameText(t *testing.T) {
	whole, err := c.ask(t, localModel, "Where does the water go?")
	if err != nil {
		t.Fatal(err)
	}
	_, said, err := c.stream(t, localModel, "Where does the water go?")
	if want := whole.Choices[0].Message.Content; err != nil || said != want || want == "" {
		t.Errorf("streamed %q, %v; not streamed %q", said, err, want)
	}
}

func (c *goClient) usage(t *testing.T) {
	chunks, _, err := c.stream(t, localModel, "hello")
	if err != nil {
		t.Fatal(err)
	}
	for _, chunk := range chunks {
		if chunk.JSON.Usage.Valid() || len(chunk.Choices) == 0 {
			t.Errorf("usage that nobody asked for: %s", chunk.RawJSON())
		}
	}
	params := question(localModel, "hello")
	params.StreamOptions.IncludeUsage = openai.Bool(true)
	chunks, err = drain(c.Chat.Completions.NewStreaming(t.Context(), params, option.WithJSONSet("ignore_eos", true)))
	if err != nil {
		t.Fatal(err)
	}
	if last := chunks[len(chunks)-1]; len(last.Choices) != 0 || last.Usage.CompletionTokens != 24 {
		t.Errorf("the last chunk is %s, want no choices and 24 completion tokens", last.RawJSON())
	}
}

func (c *goClient) completions(t *testing.T) {
	params := openai.CompletionNewParams{
		Model: localModel, Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("The river")},
		MaxTokens: openai.Int(8), Temperature: openai.Float(0),
	}
	whole, err := c.Completions.New(t.Context(), params)
	if err != nil {
		t.Fatal(err)
	}
	chunks, err := drain(c.Completions.NewStreaming(t.Context(), params))
	said := ""
	for _, chunk := range chunks {
		said += chunk.Choices[0].Text
	}
	if want := whole.Choices[0].Text; err != nil || said != want || want == "" {
		t.Errorf("streamed %q, %v; not streamed %q", said, err, want)
	}
}

func (c *goClient) embeddings(t *testing.T) {
	answer, err := c.Embeddings.New(t.Context(), openai.EmbeddingNewParams{
		Model: scripted.Model, Input: openai.EmbeddingNewParamsInputUnion{OfString: openai.String("water")},
	})
	if err != nil {
		t.Fatal(err)
	}
	got, want := answer.Data[0].Embedding, scripted.Vector("water")
	for i, x := range want {
		if len(got) != len(want) || float32(got[i]) != x {
			t.Fatalf("got %v, want %v", got, want)
		}
	}
}

func (c *goClient) models(t *testing.T) {
	page, err := c.Models.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ids := map[string]bool{}
	for _, m := range page.Data {
		ids[m.ID] = true
	}
	if !ids[localModel] || !ids[scripted.Model] {
		t.Errorf("listed %v, want %s and %s", ids, localModel, scripted.Model)
	}
	m, err := c.Models.Get(t.Context(), scripted.Model)
	if err != nil || m.ID != scripted.Model {
		t.Errorf("retrieve %s: %v, %v", scripted.Model, m, err)
	}
	_, err = c.Models.Get(t.Context(), "org/none")
	wantError(t, err, http.StatusNotFound, "model_not_found")
}

func (c *goClient) unknownFields(t *testing.T) {
	answer, err := c.ask(t, scripted.Model, "hello", option.WithJSONSet("x_client", map[string]any{"a": []any{1, 2.5, nil}}))
	if err != nil {
		t.Fatal(err)
	}
	if sent := c.up.Last().Body; !strings.Contains(sent, `"x_client":{"a":[1,2.5,null]}`) {
		t.Errorf("the upstream got %s, without x_client", sent)
	}
	if got := answer.JSON.ExtraFields["x_engine"].Raw(); got != `{"nested":[1,2.50,"é"]}` {
		t.Errorf("x_engine came as %s", got)
	}
}

func (c *goClient) tools(t *testing.T) {
	params := question(scripted.Model, "script:tools")
	params.Tools = []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(shared.FunctionDefinitionParam{
		Name: "get_weather", Parameters: shared.FunctionParameters{"type": "object"},
	})}
	acc := openai.ChatCompletionAccumulator{}
	s := c.Chat.Completions.NewStreaming(t.Context(), params)
	for s.Next() {
		acc.AddChunk(s.Current())
	}
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
	call := acc.Choices[0].Message.ToolCalls[0]
	if call.Function.Name != "get_weather" || call.Function.Arguments != `{"city":"Oslo"}` {
		t.Fatalf("called %s(%s)", call.Function.Name, call.Function.Arguments)
	}
	params.Messages = append(params.Messages, acc.Choices[0].Message.ToParam(), openai.ToolMessage("cold", call.ID))
	answer, err := c.Chat.Completions.New(t.Context(), params)
	if err != nil || answer.Choices[0].Message.Content != "It is cold." {
		t.Errorf("after the tool: %v, %v", answer, err)
	}
}

func (c *goClient) schema(t *testing.T) {
	params := question(scripted.Model, "script:schema")
	params.ResponseFormat.OfJSONSchema = &shared.ResponseFormatJSONSchemaParam{
		JSONSchema: shared.ResponseFormatJSONSchemaJSONSchemaParam{Name: "length", Schema: map[string]any{"type": "object"}},
	}
	answer, err := c.Chat.Completions.New(t.Context(), params)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Answer int
		Unit   string
	}
	if err := json.Unmarshal([]byte(answer.Choices[0].Message.Content), &got); err != nil || got.Answer != 42 || got.Unit != "m" {
		t.Errorf("got %+v, %v", got, err)
	}
}

func (c *goClient) vision(t *testing.T) {
	url := "data:image/png;base64," + base64.StdEncoding.EncodeToString(make([]byte, 6000))
	params := question(scripted.Model, "")
	params.Messages = []openai.ChatCompletionMessageParamUnion{openai.UserMessage([]openai.ChatCompletionContentPartUnionParam{
		openai.TextContentPart("script:vision"),
		openai.ImageContentPart(openai.ChatCompletionContentPartImageImageURLParam{URL: url}),
	})}
	answer, err := c.Chat.Completions.New(t.Context(), params)
	if err != nil || answer.Choices[0].Message.Content != "parts: text,image_url" {
		t.Errorf("got %v, %v", answer, err)
	}
	if !strings.Contains(c.up.Last().Body, url) {
		t.Error("the image did not arrive whole")
	}
}

func (c *goClient) reasoning(t *testing.T) {
	answer, err := c.ask(t, scripted.Model, "script:reason")
	if err != nil {
		t.Fatal(err)
	}
	if got := answer.Choices[0].Message.JSON.ExtraFields["reasoning_content"].Raw(); got != `"First, the river."` {
		t.Errorf("reasoning_content came as %s", got)
	}
}

func (c *goClient) responses(t *testing.T) {
	params := responses.ResponseNewParams{
		Model: scripted.Model, Input: responses.ResponseNewParamsInputUnion{OfString: openai.String("hello there")},
	}
	whole, err := c.Responses.New(t.Context(), params)
	if err != nil || whole.OutputText() != "You said: hello there" {
		t.Fatalf("got %v, %v", whole, err)
	}
	events, err := drain(c.Responses.NewStreaming(t.Context(), params))
	if err != nil || events[len(events)-1].Type != "response.completed" {
		t.Errorf("%d events, %v; want the last to be response.completed", len(events), err)
	}
	if again, err := c.Responses.Get(t.Context(), whole.ID, responses.ResponseGetParams{}); err != nil || again.ID != whole.ID {
		t.Errorf("retrieve %s: %v, %v", whole.ID, again, err)
	}
}

func (c *goClient) headers(t *testing.T) {
	var raw *http.Response
	if _, err := c.ask(t, scripted.Model, "hello", option.WithResponseInto(&raw), option.WithHeader("x-request-id", "mine-1.2_3")); err != nil {
		t.Fatal(err)
	}
	if got := raw.Header.Get("x-request-id"); got != "mine-1.2_3" {
		t.Errorf("x-request-id: %q, want mine-1.2_3", got)
	}
	for _, name := range []string{"x-penstock-queue-ms", "x-ratelimit-limit-requests", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"} {
		if raw.Header.Get(name) == "" {
			t.Errorf("no header %s in %v", name, raw.Header)
		}
	}
}

func (c *goClient) errors(t *testing.T) {
	_, err := c.ask(t, "nobody/nothing", "hello")
	if e := wantError(t, err, http.StatusNotFound, "model_not_found"); e.Param != "model" {
		t.Errorf("param %q, want model", e.Param)
	}
	_, err = c.ask(t, localModel, "hello", option.WithJSONSet("messages", "not a list"))
	if e, ok := errors.AsType[*openai.Error](err); !ok || e.StatusCode != http.StatusBadRequest || e.Param != "messages" || e.Type != "invalid_request_error" {
		t.Errorf("messages that are no list: %v, want 400 for param messages", err)
	}
	_, err = c.ask(t, scripted.Model, "script:status 500")
	wantError(t, err, http.StatusBadGateway, "upstream_error")
	_, err = c.ask(t, scripted.Model, "script:status 422")
	wantError(t, err, http.StatusUnprocessableEntity, "engine_says_422")
}

func (c *goClient) rateLimit(t *testing.T) {
	if _, err := c.ask(t, scripted.Model, "hello"); err != nil {
		t.Fatal(err)
	}
	_, err := c.ask(t, scripted.Model, "hello")
	if e := wantError(t, err, http.StatusTooManyRequests, "rate_limit_exceeded"); e.Response.Header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
}

func (c *goClient) truncated(t *testing.T) {
	for _, script := range []string{"die", "end", "wrong"} {
		if chunks, said, err := c.stream(t, scripted.Model, "script:"+script); err == nil {
			t.Errorf("script:%s ended as if well, after %d chunks that say %q", script, len(chunks), said)
		}
	}
}

// freed fails unless the upstream is soon left by everybody.
func (c *goClient) freed(t *testing.T) {
	t.Helper()
	harness.Eventually(t, 3*time.Second, "the engine is free again", func() error {
		if n := c.up.Open(); n > 0 {
			return fmt.Errorf("%d requests are still being answered", n)
		}
		return nil
	})
}

func (c *goClient) timeout(t *testing.T) {
	began := time.Now()
	_, err := c.ask(t, scripted.Model, "script:slow", option.WithRequestTimeout(500*time.Millisecond))
	if took := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || took > 3*time.Second {
		t.Errorf("after %v: %v, want a deadline exceeded after 0.5 s", took, err)
	}
	c.freed(t)
}

func (c *goClient) cancelled(t *testing.T) {
	s := c.Chat.Completions.NewStreaming(t.Context(), question(scripted.Model, "script:drip"))
	if !s.Next() {
		t.Fatalf("no first event: %v", s.Err())
	}
	if n := c.up.Open(); n != 1 {
		t.Errorf("%d requests at the upstream, want 1", n)
	}
	s.Close()
	c.freed(t)
}

func (c *goClient) retries429(t *testing.T) {
	began := time.Now()
	for range 3 {
		if _, err := c.ask(t, scripted.Model, "hello"); err != nil {
			t.Fatal(err)
		}
	}
	if took := time.Since(began); took < time.Second || took > 12*time.Second {
		t.Errorf("three requests at one a second took %v", took)
	}
}
