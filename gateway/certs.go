package gateway

import (
	"crypto/tls"
	"fmt"
	"os"
	"sync"
	"time"
)

// certCheck is how often a listener's certificate files are looked at, at most.
const certCheck = time.Second

// ListenerTLS serves the certificate in two files, and a new one as soon as
// they change. A pair that cannot be read keeps the one before in use.
func ListenerTLS(certFile, keyFile string) (*tls.Config, error) {
	c := &certFiles{cert: certFile, key: keyFile}
	if err := c.load(); err != nil {
		return nil, err
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}, GetCertificate: c.get}, nil
}

// certFiles is a certificate that follows its files.
type certFiles struct {
	cert, key string

	mu      sync.Mutex
	current *tls.Certificate
	stamp   [2]time.Time
	checked time.Time
}

func (c *certFiles) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); now.Sub(c.checked) >= certCheck {
		c.checked = now
		if c.stamps() != c.stamp {
			_ = c.read() // half-written files: the next look will do
		}
	}
	return c.current, nil
}

func (c *certFiles) load() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.read()
}

// read takes the files over. The lock is held.
func (c *certFiles) read() error {
	stamp := c.stamps()
	pair, err := tls.LoadX509KeyPair(c.cert, c.key)
	if err != nil {
		return fmt.Errorf("certificate %s and key %s: %w", c.cert, c.key, err)
	}
	c.current, c.stamp = &pair, stamp
	return nil
}

func (c *certFiles) stamps() (s [2]time.Time) {
	for i, name := range []string{c.cert, c.key} {
		if fi, err := os.Stat(name); err == nil {
			s[i] = fi.ModTime()
		}
	}
	return s
}
