package top

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// terminal opens a pseudo-terminal: ours is the side of keyboard and screen.
func terminal(t *testing.T) (ours, theirs *os.File) {
	t.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("no pseudo-terminal: %v", err)
	}
	ours = os.NewFile(uintptr(fd), "ptmx")
	t.Cleanup(func() { ours.Close() })
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Skipf("no pseudo-terminal: %v", err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Skipf("no pseudo-terminal: %v", err)
	}
	theirs, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo-terminal: %v", err)
	}
	t.Cleanup(func() { theirs.Close() })
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80}); err != nil {
		t.Fatal(err)
	}
	return ours, theirs
}

func TestATerminalIsGivenBackAsItWas(t *testing.T) {
	url := gateway(t, []string{update})
	ours, theirs := terminal(t)
	before, err := term.GetState(int(theirs.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	var s screen
	go func() {
		b := make([]byte, 4096)
		for {
			n, err := ours.Read(b)
			_, _ = s.Write(b[:n])
			if err != nil {
				return
			}
		}
	}()
	ended := make(chan error, 1)
	go func() { ended <- Run(t.Context(), Options{URL: url}, theirs, theirs) }()
	s.shows(t, "REPLICA")
	fmt.Fprint(ours, "\x03") // raw: ^C is a key
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("^C does not end it")
	}
	s.shows(t, strings.TrimSuffix(leave, "\x1b[?1049l"))
	after, err := term.GetState(int(theirs.Fd()))
	if err != nil || fmt.Sprint(*after) != fmt.Sprint(*before) {
		t.Errorf("the terminal's state was %v and is %v, %v", *before, *after, err)
	}
}
