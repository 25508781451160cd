// Package localtest starts embedded engines for the tests of other packages.
package localtest

import (
	"net"
	"testing"

	"penstock/engine/local"
)

// Start serves an embedded engine on a free loopback port until the test ends.
func Start(t testing.TB, o local.Options) (url string, s *local.Server) {
	t.Helper()
	s, err := local.New(o)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(ln)
	}()
	t.Cleanup(func() {
		s.Close()
		<-done
	})
	return "http://" + ln.Addr().String(), s
}

// URL is Start for tests that need the address alone.
func URL(t testing.TB, o local.Options) string {
	t.Helper()
	url, _ := Start(t, o)
	return url
}
