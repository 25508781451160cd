package configs

import (
	"context"
	"crypto/sha256"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// settle is how long a file must be left alone before it is read: editors
	// truncate first and write then, others write twice.
	settle = 100 * time.Millisecond
	// look is how often a file is read without any notice of a change: network
	// file systems give none.
	look = 10 * time.Second
	// maxLinks bounds the symbolic links that are followed.
	maxLinks = 16
)

// Watch calls onChange, from its own goroutine, each time the content of the
// file at path has changed, until ctx is done; then it returns nil. It blocks.
// What counts is the content when the file has been left alone for a moment,
// so it does not matter whether the file is written in place, renamed over (as
// editors do), or reached by a symbolic link that is swapped (as Kubernetes
// does with a ConfigMap). A file that is gone has changed, and once more when it
// is back.
// It is called once at the start too, after the same moment: the caller may have
// read the file before the watch was in place, and a change in between would
// otherwise be seen with the next one only.
//
// Where the system cannot notify (no inotify handles left, for one) it looks
// every 10 s.
func Watch(ctx context.Context, path string, onChange func()) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	w := &watch{path: path}
	if w.notify, err = fsnotify.NewWatcher(); err == nil {
		defer w.notify.Close()
	}
	w.rearm()
	w.run(ctx, onChange)
	return nil
}

// watch is one file under watch. The folders are watched, not the file, since
// a file that is renamed over takes its watch with it.
type watch struct {
	path   string
	notify *fsnotify.Watcher // nil: look only
	seen   [sha256.Size]byte
}

func (w *watch) run(ctx context.Context, onChange func()) {
	var events chan fsnotify.Event
	var failures chan error
	if w.notify != nil {
		events, failures = w.notify.Events, w.notify.Errors
	}
	timer := time.NewTimer(settle)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-events:
			timer.Reset(settle)
		case <-failures: //nolint:errcheck // an overflow, for one: something was missed
			timer.Reset(settle)
		case <-timer.C:
			timer.Reset(look)
			w.rearm()
			if sum := w.sum(); sum != w.seen {
				w.seen = sum
				onChange()
			}
		}
	}
}

// sum is the hash of the content; zero while there is none to read.
func (w *watch) sum() (sum [sha256.Size]byte) {
	f, err := os.Open(w.path)
	if err != nil {
		return sum
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, io.LimitReader(f, maxFile+1)); err != nil {
		return sum
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// rearm watches the folders on the way to the file as it leads now. Adding a
// folder again is harmless, and needed when it was removed and made anew.
func (w *watch) rearm() {
	if w.notify == nil {
		return
	}
	dirs := foldersOf(w.path)
	for _, old := range w.notify.WatchList() {
		if !slices.Contains(dirs, old) {
			_ = w.notify.Remove(old)
		}
	}
	for _, dir := range dirs {
		_ = w.notify.Add(dir) // fails for a folder that does not exist: the next look tries again
	}
}

// foldersOf are the folders in which a change can change what path leads to:
// its own, those of each link on the way, and that of the file itself.
func foldersOf(path string) []string {
	dirs := []string{filepath.Dir(path)}
	for range maxLinks {
		target, err := os.Readlink(path)
		if err != nil {
			break
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(filepath.Dir(path), target)
		}
		path = target
		dirs = append(dirs, filepath.Dir(path))
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		dirs = append(dirs, filepath.Dir(real))
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}
