package main

import (
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/spf13/cobra"
)

// newHealthCmd asks a running gateway whether it is well: a container's
// health check, since the image holds no shell and no curl.
func newHealthCmd(e *env) *cobra.Command {
	url, timeout := "http://127.0.0.1:8080/healthz", 2*time.Second
	cmd := &cobra.Command{
		Use:   "health",
		Short: "Exit 0 if a running gateway answers its health check, 1 if not",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			req, err := http.NewRequestWithContext(cmd.Context(), http.MethodGet, url, nil)
			if err != nil {
				return usagef(cmd, "--url %q: %w", url, err)
			}
			resp, err := (&http.Client{Timeout: timeout}).Do(req)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				text, _ := io.ReadAll(io.LimitReader(resp.Body, 200))
				return fmt.Errorf("%s answered %d: %s", url, resp.StatusCode, text)
			}
			_, err = fmt.Fprintln(e.stdout, "ok")
			return err
		},
	}
	cmd.Flags().StringVar(&url, "url", url, "what to ask; /readyz instead of /healthz also fails while it drains")
	cmd.Flags().DurationVar(&timeout, "timeout", timeout, "how long to wait for the answer")
	return cmd
}
