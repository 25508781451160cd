package engine

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"penstock/configs"
)

// authority issues certificates into files.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	n    int64
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{dir: t.TempDir()}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	a.key = key
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.write(t, "ca.pem", "CERTIFICATE", der)
	return a
}

func (a *authority) write(t *testing.T, name, kind string, der []byte) string {
	t.Helper()
	path := filepath.Join(a.dir, name)
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// issue makes a certificate for a name and returns its two files.
func (a *authority) issue(t *testing.T, name string) (certFile, keyFile string) {
	t.Helper()
	a.n++
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1 + a.n), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return a.write(t, name+".pem", "CERTIFICATE", der), a.write(t, name+"-key.pem", "PRIVATE KEY", private)
}

// secure serves a fake over TLS for the name "engine", to clients with a
// certificate of the authority and the right key only.
func secure(t *testing.T, a *authority, f *fake, key string) string {
	t.Helper()
	certFile, keyFile := a.issue(t, "engine")
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	clients := x509.NewCertPool()
	clients.AddCert(a.cert)
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+key {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		f.ServeHTTP(w, r)
	}))
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients}
	srv.StartTLS()
	t.Cleanup(srv.Close)
	return srv.URL
}

func TestEngineOverTLSWithClientCertificateAndKey(t *testing.T) {
	a := newAuthority(t)
	certFile, keyFile := a.issue(t, "client")
	url := secure(t, a, newFake(t, KindSGLang, 2), "s3cret")
	good := configs.Engine{
		URL: url, ID: "e", Key: "s3cret",
		TLS: configs.EngineTLS{CA: filepath.Join(a.dir, "ca.pem"), Cert: certFile, Key: keyFile, ServerName: "engine"},
	}
	f, _ := startFleet(t, quick(served("m", good)))
	r := replica(t, f, "e/1")
	c := r.Conn()
	if !r.Usable() || !c.IsTLS || c.TLS.ServerName != "engine" || c.Key != "s3cret" || len(c.TLS.Certificates) != 1 {
		t.Errorf("connection: got usable %v, TLS %v, %+v; want all settings in it", r.Usable(), c.IsTLS, c)
	}
	apply(t, f, quick(served("m", good)))
	if r.Conn() != c {
		t.Error("a reload that changes nothing changed the connection's settings")
	}
	other := good
	other.TLS.Cert, other.TLS.Key = a.issue(t, "client")
	apply(t, f, quick(served("m", other)))
	if r.Conn() == c {
		t.Error("a reload with another client certificate kept the connection's settings")
	}
}

func TestWrongTLSSettingsDoNotConnect(t *testing.T) {
	a, stranger := newAuthority(t), newAuthority(t)
	certFile, keyFile := a.issue(t, "client")
	url := secure(t, a, newFake(t, KindSGLang, 1), "s3cret")
	ca := filepath.Join(a.dir, "ca.pem")
	for name, tt := range map[string]struct {
		eng  configs.Engine
		want string
	}{
		"no CA":          {configs.Engine{Key: "s3cret", TLS: configs.EngineTLS{Cert: certFile, Key: keyFile, ServerName: "engine"}}, "unknown authority"},
		"another CA":     {configs.Engine{Key: "s3cret", TLS: configs.EngineTLS{CA: filepath.Join(stranger.dir, "ca.pem"), Cert: certFile, Key: keyFile, ServerName: "engine"}}, "unknown authority"},
		"wrong name":     {configs.Engine{Key: "s3cret", TLS: configs.EngineTLS{CA: ca, Cert: certFile, Key: keyFile, ServerName: "other"}}, "not other"},
		"no certificate": {configs.Engine{Key: "s3cret", TLS: configs.EngineTLS{CA: ca, ServerName: "engine"}}, "certificate required"},
		"wrong key":      {configs.Engine{Key: "wrong", TLS: configs.EngineTLS{CA: ca, Cert: certFile, Key: keyFile, ServerName: "engine"}}, "status 401"},
	} {
		t.Run(name, func(t *testing.T) {
			var text logged
			f := NewFleet(Options{Logger: textLogger(&text)})
			defer f.Close()
			tt.eng.URL, tt.eng.ID = url, "e"
			if err := f.Apply(t.Context(), quick(served("m", tt.eng))); err != nil {
				t.Fatal(err)
			}
			eventually(t, "a line that says why", func() bool { return strings.Contains(text.String(), tt.want) })
			if r := replica(t, f, "e"); r.State() != Starting || r.Usable() {
				t.Errorf("got state %s, usable %v; want starting", r.State(), r.Usable())
			}
			if strings.Contains(text.String(), "s3cret") {
				t.Error("the log holds the engine's key")
			}
		})
	}
}

func TestBadTLSFilesAreNamed(t *testing.T) {
	a := newAuthority(t)
	certFile, _ := a.issue(t, "client")
	_, otherKey := a.issue(t, "other")
	for _, tt := range []struct {
		cfg  configs.EngineTLS
		want string
	}{
		{configs.EngineTLS{CA: "/nowhere.pem"}, "tls.ca: open /nowhere.pem"},
		{configs.EngineTLS{CA: otherKey}, "holds no PEM certificate"},
		{configs.EngineTLS{Cert: certFile}, "expected both or neither"},
		{configs.EngineTLS{Cert: certFile, Key: otherKey}, "private key does not match"},
	} {
		if _, err := loadTLS(tt.cfg); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: got %v, want %q", tt.cfg, err, tt.want)
		}
	}
}
