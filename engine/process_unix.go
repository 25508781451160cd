//go:build unix && !linux

package engine

import (
	"os/exec"
	"syscall"
)

// ownGroup gives a child a process group, so that it can be stopped with its
// own children. Should the gateway be killed, they live on here.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

func endGroup(pid int) error  { return syscall.Kill(-pid, syscall.SIGTERM) }
func killGroup(pid int) error { return syscall.Kill(-pid, syscall.SIGKILL) }
