//go:build unix

package harness

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// locked runs do while no other test process runs one of the same name.
func locked(name string, do func() error) error {
	if err := os.MkdirAll(Cache(), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(Cache(), name+".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return err
	}
	return do()
}
