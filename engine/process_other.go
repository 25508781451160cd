//go:build !unix

package engine

import (
	"os"
	"os/exec"
)

// There are no process groups here: a child's own children are left to it.
func ownGroup(*exec.Cmd) {}

func endGroup(pid int) error { return killGroup(pid) }

func killGroup(pid int) error {
	p, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	return p.Kill()
}
