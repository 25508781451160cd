package main

import (
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"penstock/cmd/internal/top"
)

// defaultAdmin is where a gateway's admin listener is unless configured.
const defaultAdmin = "http://127.0.0.1:9090"

// adminURL reads --admin: a URL, or host:port.
func adminURL(cmd *cobra.Command, s string) (string, error) {
	if !strings.Contains(s, "://") {
		s = "http://" + s
	}
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return "", usagef(cmd, "--admin %q: expected the admin listener, such as %s", s, defaultAdmin)
	}
	return strings.TrimRight(u.String(), "/"), nil
}

func newTopCmd(e *env) *cobra.Command {
	admin := defaultAdmin
	var o top.Options
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Watch a running gateway in the terminal: replicas, queues, keys",
		Long: `Watch a running gateway in the terminal: its replicas, queues and keys, and what
was refused or failed lately, as on its status page. q quits. Without a terminal
one view is written, without colours.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if o.URL, err = adminURL(cmd, admin); err != nil {
				return err
			}
			v, set := e.getenv("NO_COLOR")
			t, _ := e.getenv("TERM")
			o.Color = (!set || v == "") && t != "dumb"
			return top.Run(cmd.Context(), o, e.stdin, e.stdout)
		},
	}
	cmd.Flags().StringVar(&admin, "admin", admin, "the gateway's admin listener")
	cmd.Flags().BoolVar(&o.Once, "once", false, "write one view and end")
	return cmd
}
