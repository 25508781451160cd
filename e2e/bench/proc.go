package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// process is a program under the bench, with its children.
type process struct {
	cmd  *exec.Cmd
	log  string // file
	done chan struct{}
}

// spawn starts a program that ends with the bench. Its output goes to a file,
// as it would in service.
func (l *lab) spawn(env []string, name string, args ...string) (*process, error) {
	log, err := os.Create(l.path(fmt.Sprintf("log%d", len(l.processes))))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p := &process{cmd: exec.Command(name, args...), log: log.Name(), done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { _ = p.cmd.Wait(); close(p.done) }()
	l.processes = append(l.processes, p)
	return p, nil
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// lastWords are the end of what it wrote.
func (p *process) lastWords() string {
	b, _ := os.ReadFile(p.log)
	return string(b[max(0, len(b)-2000):])
}

// stop ends the process and its group.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(3 * time.Second):
	}
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	<-p.done
}

// group is every process of p's group: a master and its workers.
func (p *process) group() []int {
	var pids []int
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		f, err := statFields(path)
		if err != nil {
			continue // it ended
		}
		if pgrp, _ := strconv.Atoi(f[2]); pgrp == p.cmd.Process.Pid {
			if pid, err := strconv.Atoi(strings.Split(path, "/")[2]); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// statFields are those of /proc/PID/stat after the command, from the state on.
func statFields(path string) ([]string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	i := bytes.LastIndexByte(b, ')')
	if i < 0 {
		return nil, errors.New("no command in " + path)
	}
	return strings.Fields(string(b[i+1:])), nil
}

// use is what a group of processes has used and holds.
type use struct {
	cpu       time.Duration
	rss, peak int64 // bytes
}

// use reads CPU time and memory.
func (p *process) use() use {
	var u use
	for _, pid := range p.group() {
		u.cpu += cpuOf(pid)
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		u.rss += statusBytes(b, "VmRSS:")
		u.peak += statusBytes(b, "VmHWM:")
	}
	return u
}

// cpuOf is the user and system time of a process, threads that have ended
// included: its CPU clock, which is as fine as the scheduler's accounting,
// where /proc/PID/stat has ticks of 10 ms.
func cpuOf(pid int) time.Duration {
	const schedClock = 2 // of the whole process, as clock_getcpuclockid(3) makes it
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|schedClock), &ts); err != nil {
		return 0 // it ended
	}
	return time.Duration(ts.Nano())
}

func statusBytes(b []byte, name string) int64 {
	_, rest, ok := bytes.Cut(b, []byte(name))
	if !ok {
		return 0
	}
	f := strings.Fields(string(rest[:min(len(rest), 40)]))
	if len(f) == 0 {
		return 0
	}
	kb, _ := strconv.ParseInt(f[0], 10, 64)
	return kb << 10
}

// forgetPeak makes the peak begin anew.
func (p *process) forgetPeak() {
	for _, pid := range p.group() {
		_ = os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0)
	}
}
