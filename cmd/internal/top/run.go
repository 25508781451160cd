package top

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
)

// Options are what Run needs to know.
type Options struct {
	// URL is the admin listener's, without a slash at its end.
	URL string
	// Once writes one view and ends, as without a terminal.
	Once bool
	// Color is whether colours are used in a terminal.
	Color bool
}

// Run shows the gateway until q is pressed or ctx ends. Where stdin and stdout
// are not a terminal, it writes one view without colours and ends.
func Run(ctx context.Context, o Options, stdin io.Reader, stdout io.Writer) error {
	in, inOK := stdin.(*os.File)
	out, outOK := stdout.(*os.File)
	if o.Once || !inOK || !outOK || !term.IsTerminal(int(in.Fd())) || !term.IsTerminal(int(out.Fd())) {
		s, err := one(ctx, o.URL)
		if err != nil {
			return fmt.Errorf("no view of %s: %w", o.URL, err)
		}
		v := view{}
		_, err = io.WriteString(stdout, strings.Join(v.render(s, o.URL), "\n")+"\n")
		return err
	}
	before, err := term.MakeRaw(int(in.Fd()))
	if err != nil {
		return err
	}
	defer func() { _ = term.Restore(int(in.Fd()), before) }()
	size := func() (int, int) {
		w, h, err := term.GetSize(int(out.Fd()))
		if err != nil {
			return 80, 24
		}
		return w, h
	}
	return show(ctx, o, in, out, size)
}

// What the terminal is told: an own screen without a cursor, and back.
const (
	enter = "\x1b[?1049h\x1b[?25l"
	leave = "\x1b[?25h\x1b[?1049l"
	home  = "\x1b[H"
	rest  = "\x1b[K\r\n" // the rest of a line is empty
	below = "\x1b[J"     // and all below
)

// resizePoll is how often the terminal's size is looked at.
const resizePoll = 250 * time.Millisecond

// show draws each update until a key ends it.
func show(ctx context.Context, o Options, keys io.Reader, out io.Writer, size func() (w, h int)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	updates := make(chan news)
	go follow(ctx, o.URL, updates)
	go func() {
		quitKey(keys)
		cancel()
	}()
	if _, err := io.WriteString(out, enter); err != nil {
		return err
	}
	defer func() { _, _ = io.WriteString(out, leave) }()
	poll := time.NewTicker(resizePoll)
	defer poll.Stop()
	var last news
	w, h := size()
	for {
		if err := draw(out, o, last, w, h); err != nil {
			return err
		}
	wait:
		for {
			select {
			case <-ctx.Done():
				return nil
			case n := <-updates:
				if n.state == nil {
					n.state = last.state // what was known stays on the screen
				}
				last = n
				break wait
			case <-poll.C:
				if nw, nh := size(); nw != w || nh != h {
					w, h = nw, nh
					break wait
				}
			}
		}
	}
}

// draw writes one screen at once, so that it does not flicker.
func draw(out io.Writer, o Options, n news, w, h int) error {
	v := view{width: w, height: max(1, h-1), color: o.Color}
	var lines []string
	foot := "q quits"
	switch {
	case n.state != nil:
		lines = v.render(n.state, o.URL)
	case n.err == nil:
		lines = []string{"Connecting to " + o.URL + " …"}
	}
	if n.err != nil {
		foot = "Not connected: " + printable(n.err.Error()) + ". Trying again; q quits"
		if errors.Is(n.err, errSilent) {
			foot = "The gateway is silent. Trying again; q quits"
		}
	}
	var b strings.Builder
	b.WriteString(home)
	for _, l := range lines {
		b.WriteString(l + rest)
	}
	b.WriteString(below)
	fmt.Fprintf(&b, "\x1b[%d;1H", max(1, h))
	if o.Color {
		b.WriteString(dim)
	}
	b.WriteString(clip(foot, max(1, w-1)))
	if o.Color {
		b.WriteString(plain)
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// quitKey returns when q, ^C or ^D is pressed, or the keyboard is gone.
func quitKey(keys io.Reader) {
	var b [16]byte
	for {
		n, err := keys.Read(b[:])
		for _, c := range b[:n] {
			if c == 'q' || c == 'Q' || c == 3 || c == 4 {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
