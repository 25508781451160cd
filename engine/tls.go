package engine

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"

	"penstock/configs"
)

// loadTLS reads the files by which an https engine is verified and answered;
// nil when none are named.
func loadTLS(cfg configs.EngineTLS) (*tls.Config, error) {
	if cfg == (configs.EngineTLS{}) {
		return nil, nil
	}
	tc := &tls.Config{MinVersion: tls.VersionTLS12}
	var errs []error
	if cfg.CA != "" {
		pem, err := os.ReadFile(cfg.CA)
		if err != nil {
			errs = append(errs, fmt.Errorf("tls.ca: %w", err))
		} else if tc.RootCAs = x509.NewCertPool(); !tc.RootCAs.AppendCertsFromPEM(pem) {
			errs = append(errs, fmt.Errorf("tls.ca: %s holds no PEM certificate", cfg.CA))
		}
	}
	switch {
	case cfg.Cert != "" && cfg.Key != "":
		pair, err := tls.LoadX509KeyPair(cfg.Cert, cfg.Key)
		if err != nil {
			errs = append(errs, fmt.Errorf("tls.cert %s, tls.key %s: %w", cfg.Cert, cfg.Key, err))
		}
		tc.Certificates = []tls.Certificate{pair}
	case cfg.Cert != "" || cfg.Key != "":
		errs = append(errs, errors.New("tls.cert and tls.key: expected both or neither"))
	}
	return tc, errors.Join(errs...)
}

// clientTLS is the configuration for one https URL: base is from loadTLS, and
// the certificate must be for serverName, or else for the URL's host.
func clientTLS(base *tls.Config, serverName, host string) *tls.Config {
	tc := &tls.Config{MinVersion: tls.VersionTLS12}
	if base != nil {
		tc = base.Clone()
	}
	tc.ServerName = serverName
	if tc.ServerName == "" {
		tc.ServerName = host
		if h, _, err := net.SplitHostPort(host); err == nil {
			tc.ServerName = h
		}
	}
	return tc
}

func sameCerts(a, b *tls.Config) bool {
	if len(a.Certificates) != len(b.Certificates) {
		return false
	}
	for i := range a.Certificates {
		x, y := a.Certificates[i].Certificate, b.Certificates[i].Certificate
		if len(x) != len(y) {
			return false
		}
		for j := range x {
			if !bytes.Equal(x[j], y[j]) {
				return false
			}
		}
	}
	return true
}
