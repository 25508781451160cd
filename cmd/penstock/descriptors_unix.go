//go:build unix

package main

import "syscall"

// descriptorLimit is how many files and connections the process may have open.
// Go has raised it to its hard bound when it started. 0: not known.
func descriptorLimit() uint64 {
	var l syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l) != nil {
		return 0
	}
	return uint64(l.Cur) //nolint:unconvert // it is signed on some systems
}
