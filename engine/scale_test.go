package engine

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"penstock/configs"
)

// beMany is the child of BenchmarkFleet500: many engines on one port, told
// apart by a path prefix, so that their cost is another process's.
func beMany() {
	sg, vl := bare(KindSGLang, 1), bare(KindVLLM, 1)
	filler := strings.Repeat("vllm:time_to_first_token_seconds_bucket{engine=\"0\",le=\"0.001\",model_name=\"tiny\"} 0.0\n", 700)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(ln.Addr())
	fmt.Println(http.Serve(ln, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, rest, _ := strings.Cut(r.URL.Path[1:], "/")
		r.URL.Path = "/" + rest
		if strings.HasPrefix(r.RequestURI, "/vllm") {
			if rest == "metrics" { // as long as a real one's
				_, _ = io.WriteString(w, filler)
			}
			vl.ServeHTTP(w, r)
			return
		}
		sg.ServeHTTP(w, r)
	})))
}

// BenchmarkFleet500 says how much of one core the watching of 500 engines
// takes with the default settings: start-up (until all are known) and then
// probes and load polls.
func BenchmarkFleet500(b *testing.B) {
	for _, kind := range []Kind{KindSGLang, KindVLLM} {
		b.Run(string(kind), func(b *testing.B) { watchMany(b, kind, 500) })
	}
}

func watchMany(b *testing.B, kind Kind, n int) {
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), childMode+"=many")
	out, err := child.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := child.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() { _ = child.Process.Kill(); _ = child.Wait() }()
	addr, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	var engines []configs.Engine
	for i := range n {
		engines = append(engines, configs.Engine{
			URL: fmt.Sprintf("http://%s/%s-%d", strings.TrimSpace(addr), kind, i), ID: fmt.Sprintf("e%d", i), Kind: string(kind),
		})
	}
	for b.Loop() {
		begun, used := time.Now(), cpuTime()
		f, _ := startFleet(b, slow(served("m", engines...)))
		b.ReportMetric(time.Since(begun).Seconds(), "s-startup")
		b.ReportMetric((cpuTime() - used).Seconds(), "cpu-s-startup")
		begun, used = time.Now(), cpuTime()
		<-time.After(10 * time.Second)
		b.ReportMetric(100*(cpuTime()-used).Seconds()/time.Since(begun).Seconds(), "%core")
		for _, r := range f.Replicas() {
			if !r.Usable() {
				b.Errorf("replica %s is not usable", r.ID())
			}
		}
		f.Close()
	}
}

// cpuTime is what this process has used.
func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
