package engine

import (
	"os/exec"
	"syscall"
)

// ownGroup gives a child a process group, so that it can be stopped with its
// own children, and has the kernel kill it should the gateway die.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

func endGroup(pid int) error  { return syscall.Kill(-pid, syscall.SIGTERM) }
func killGroup(pid int) error { return syscall.Kill(-pid, syscall.SIGKILL) }
