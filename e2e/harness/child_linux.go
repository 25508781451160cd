package harness

import "syscall"

// childAttr has the kernel kill a child whose parent died.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
