package limits

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"penstock/configs"
)

// selfSigned writes a certificate for 127.0.0.1 and its key.
func selfSigned(t *testing.T) (cert, key string) {
	t.Helper()
	dir := t.TempDir()
	priv, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "redis"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &priv.PublicKey, priv)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(priv)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return write("cert.pem", "CERTIFICATE", der), write("key.pem", "EC PRIVATE KEY", keyDER)
}

// wantWorking reserves and settles on whatever the options name.
func wantWorking(t *testing.T, what string, r configs.Redis) {
	t.Helper()
	r.Prefix, r.OnError = "test", "local"
	// Longer than the default: a handshake on a busy machine is not what is tested.
	r.Timeout = time.Second
	l := redisLimiter(t, "", func(o *Options) { o.Redis = r })
	lim := &configs.Limits{RequestsPerMinute: 100, Concurrency: 2}
	eventually(t, what, func() bool {
		r, err := l.Reserve(t.Context(), time.Now(), keyRequest(lim))
		if err != nil {
			t.Fatal(err)
		}
		defer r.Settle(time.Now(), Actual{Outcome: OutcomeReturned})
		return r.Mode() == ModeRedis && r.hasSlot()
	})
	eventually(t, what+": settled", func() bool {
		r, err := l.Reserve(t.Context(), time.Now(), keyRequest(lim))
		if err != nil {
			t.Fatal(err)
		}
		defer r.Settle(time.Now(), Actual{Outcome: OutcomeReturned})
		return r.State().Requests.Remaining == 99
	})
}

func TestRedisWithPasswordAndTLS(t *testing.T) {
	t.Parallel()
	cert, key := selfSigned(t)
	tlsPort := freePort(t)
	srv := startRedis(t, "--requirepass", "s3cret", "--tls-port", tlsPort, "--tls-cert-file", cert, "--tls-key-file", key,
		"--tls-ca-cert-file", cert)
	wantWorking(t, "password", configs.Redis{URL: "redis://" + srv.addr() + "/2", Password: "s3cret"})
	wantWorking(t, "mutual TLS", configs.Redis{
		URL: "rediss://127.0.0.1:" + tlsPort, Password: "s3cret",
		TLS: configs.EngineTLS{CA: cert, Cert: cert, Key: key},
	})
	// The permissions that docs/limits.md lists suffice.
	doc := documentation(t)
	_, list, _ := strings.Cut(doc, "| permissions | ")
	list, _, _ = strings.Cut(list, ", on keys")
	acl := []any{"ACL", "SETUSER", "few", "on", ">few", "~{test}:*"}
	for c := range strings.SplitSeq(list, ", ") {
		acl = append(acl, "+"+strings.ToLower(strings.Trim(c, "` ")))
	}
	admin := redis.NewClient(&redis.Options{Addr: srv.addr(), Password: "s3cret"})
	t.Cleanup(func() { _ = admin.Close() })
	if err := admin.Do(t.Context(), acl...).Err(); err != nil {
		t.Fatal(err)
	}
	wantWorking(t, "few permissions", configs.Redis{URL: "redis://" + srv.addr(), Username: "few", Password: "few"})
	l := redisLimiter(t, "", func(o *Options) {
		o.Redis = configs.Redis{URL: "redis://:wrong@" + srv.addr(), Timeout: time.Second}
	})
	r, err := l.Reserve(t.Context(), time.Now(), keyRequest(&configs.Limits{RequestsPerMinute: 10}))
	if err != nil || r.Mode() != ModeLocal {
		t.Errorf("wrong password: %v in mode %v, want local", err, r.Mode())
	}
}

func TestRedisCluster(t *testing.T) {
	t.Parallel()
	srv := startRedis(t, "--cluster-enabled", "yes")
	c := srv.client()
	if err := c.ClusterAddSlotsRange(t.Context(), 0, 16383).Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the cluster is whole", func() bool {
		info, err := c.ClusterInfo(t.Context()).Result()
		return err == nil && strings.Contains(info, "cluster_state:ok")
	})
	url := "redis://" + srv.addr()
	wantWorking(t, "cluster", configs.Redis{URL: url + "," + url})
}

func TestRedisSentinel(t *testing.T) {
	t.Parallel()
	srv := startRedis(t)
	conf := filepath.Join(t.TempDir(), "sentinel.conf")
	text := "sentinel monitor main 127.0.0.1 " + srv.port + " 1\n"
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s := &redisServer{t: t, port: freePort(t)}
	s.args = []string{srv.args[0], conf, "--sentinel", "--port", s.port, "--dir", t.TempDir(), "--loglevel", "warning"}
	s.start()
	t.Cleanup(s.kill)
	wantWorking(t, "sentinel", configs.Redis{URL: "redis://" + s.addr(), MasterName: "main"})
}

func TestRedisURLIsRefusedWithWhatWasExpected(t *testing.T) {
	for url, want := range map[string]string{
		"http://h:1": "want redis://", "redis://": "want redis://", "redis://h/x": `database "x"`,
	} {
		if _, err := New(Options{Redis: configs.Redis{URL: url}}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New with %q: got %v, want an error with %q", url, err, want)
		}
	}
	_, err := New(Options{Redis: configs.Redis{URL: "rediss://h", TLS: configs.EngineTLS{CA: "/nowhere"}}})
	if err == nil || !strings.Contains(err.Error(), "redis.tls.ca") {
		t.Errorf("missing CA file: got %v, want redis.tls.ca named", err)
	}
}
