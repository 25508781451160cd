package gateway

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"penstock/configs"
)

func TestNoRequestIsRefusedWhileAReloadReplacesAllEngines(t *testing.T) {
	for model, file := range map[string]string{
		"m":              "models: [{name: m, engines: [{local: {replicas: $1}}]}]",
		"penstock-local": "models: [{engines: [{local: {replicas: $1}}]}]", // what the engines serve is known once they answer
	} {
		t.Run(model, func(t *testing.T) { replaceAll(t, model, file) })
	}
}

// replaceAll reloads a file with ever other engines while the model is asked.
func replaceAll(t *testing.T, model, file string) {
	g := startGateway(t, file, "1")
	ctx, stop := context.WithCancel(t.Context())
	bad := make(chan string, 4)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			resp, err := http.Post(g.url+"/v1/completions", "application/json", strings.NewReader(`{"model":"`+model+`","prompt":"x","max_tokens":1}`))
			if err != nil {
				bad <- err.Error()
				return
			}
			b, _ := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				bad <- string(b)
				return
			}
		}
	}()
	for i := range 12 {
		cfg, err := configs.Parse("test.yaml", []byte(strings.Replace(file, "$1", string(rune('1'+(i+1)%3)), 1)), func(string) (string, bool) { return "", false })
		if err != nil {
			t.Fatal(err)
		}
		if err := g.apply(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the new engines take requests", func() bool { return g.usable() == len(g.fleet.Replicas()) })
	}
	stop()
	<-done
	select {
	case got := <-bad:
		t.Errorf("a request while engines were replaced: got %s, want 200", got)
	default:
	}
}
