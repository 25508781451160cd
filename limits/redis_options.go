package limits

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/url"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"penstock/configs"
)

// RedisPrefix begins the name of everything in Redis, in braces: one node of a
// cluster holds it all.
func RedisPrefix(c *configs.Redis) string { return "{" + cmp.Or(c.Prefix, "penstock") + "}:" }

// RedisOptions reads the configuration: one URL is a server, several a
// cluster, and a master's name makes them Sentinels. Nothing is tried twice and
// everything is bounded by the timeout: waiting for a connection, dialling,
// writing, reading.
func RedisOptions(c *configs.Redis) (*redis.UniversalOptions, error) {
	timeout := cmp.Or(c.Timeout, 50*time.Millisecond)
	pool := max(32, 10*runtime.GOMAXPROCS(0))
	o := &redis.UniversalOptions{
		MasterName: c.MasterName,
		Username:   c.Username, Password: string(c.Password),
		MaxRetries: -1, MaxRedirects: 3, DialerRetries: 1,
		DialTimeout: timeout, ReadTimeout: timeout, WriteTimeout: timeout, PoolTimeout: timeout,
		ContextTimeoutEnabled: true,
		PoolSize:              pool, MaxActiveConns: pool, MaxConcurrentDials: pool, MinIdleConns: 2,
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	secure := false
	for part := range strings.SplitSeq(c.URL, ",") {
		u, err := url.Parse(strings.TrimSpace(part))
		if err != nil || u.Hostname() == "" || u.Scheme != "redis" && u.Scheme != "rediss" {
			return nil, fmt.Errorf("redis.url: want redis://host:port/0 or rediss://host:port/0, several separated by commas")
		}
		secure = secure || u.Scheme == "rediss"
		if p, ok := u.User.Password(); ok {
			o.Password = p
		}
		o.Username = cmp.Or(u.User.Username(), o.Username)
		if db := strings.Trim(u.Path, "/"); db != "" {
			if o.DB, err = strconv.Atoi(db); err != nil {
				return nil, fmt.Errorf("redis.url: database %q: want a number", db)
			}
		}
		port := cmp.Or(u.Port(), "6379")
		o.Addrs = append(o.Addrs, u.Hostname()+":"+port)
		if strings.Contains(u.Hostname(), ":") {
			o.Addrs[len(o.Addrs)-1] = "[" + u.Hostname() + "]:" + port
		}
	}
	if !secure && c.TLS == (configs.EngineTLS{}) {
		return o, nil
	}
	var err error
	o.TLSConfig, err = redisTLS(c.TLS)
	return o, err
}

// redisTLS verifies the server by the CA file, or the system's, and shows a certificate if there is one.
func redisTLS(c configs.EngineTLS) (*tls.Config, error) {
	t := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.ServerName}
	if c.CA != "" {
		pem, err := os.ReadFile(c.CA)
		if err != nil {
			return nil, fmt.Errorf("redis.tls.ca: %w", err)
		}
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("redis.tls.ca: %s holds no certificate, want PEM", c.CA)
		}
	}
	if c.Cert != "" || c.Key != "" {
		pair, err := tls.LoadX509KeyPair(c.Cert, c.Key)
		if err != nil {
			return nil, fmt.Errorf("redis.tls.cert and key: %w", err)
		}
		t.Certificates = []tls.Certificate{pair}
	}
	return t, nil
}
