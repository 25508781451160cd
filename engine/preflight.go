package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"penstock/configs"
)

// helpTimeout bounds one run of COMMAND --help. Engines import much before
// they parse anything.
const helpTimeout = 60 * time.Second

// fewOptions is what the short help of a program that has a longer one shows at most.
const fewOptions = 10

// maxHelp bounds what is read of its output.
const maxHelp = 4 << 20

// ErrUnchecked says that a command's flags could not be checked, for the
// reason given; the command may well be right.
var ErrUnchecked = errors.New("flags not checked")

// Preflight checks a launch command's flags against the command's own --help,
// by argparse's rules, before anything is loaded. An error that is
// ErrUnchecked is no refusal.
func Preflight(ctx context.Context, l configs.Launch) error {
	words, err := l.Words()
	if err != nil {
		return fmt.Errorf("launch.command: %w", err)
	}
	if len(words) == 0 {
		return errors.New("launch.command is empty")
	}
	if _, err := exec.LookPath(words[0]); err != nil {
		return fmt.Errorf("launch.command: %w", err)
	}
	prefix, args, err := splitProgram(words)
	if err != nil {
		return err
	}
	flexible := slices.ContainsFunc(prefix, func(w string) bool { return strings.Contains(filepath.Base(w), "vllm") })
	known, err := askHelp(ctx, prefix, launchEnv(l, 0), flexible)
	if err != nil {
		return err
	}
	sample := strings.NewReplacer("{port}", "1", "{index}", "0", "{devices}", "0")
	for i := range args {
		args[i] = sample.Replace(args[i])
	}
	if err := newFlags(known, flexible).check(args); err != nil {
		return fmt.Errorf("launch.command: %s (as %s --help tells)", oneLine(err), strings.Join(prefix, " "))
	}
	return nil
}

// oneLine joins joined errors on one line.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// Programs that run another and have options of their own. Those in plain take
// numbers and assignments besides; of the others it cannot be told where their
// own options end.
var (
	plainWrappers  = []string{"env", "nice", "nohup", "numactl", "taskset", "stdbuf", "setsid", "ionice", "chrt", "time", "timeout", "exec"}
	opaqueWrappers = []string{"docker", "podman", "nerdctl", "srun", "uv", "uvx", "conda", "mamba", "poetry", "sudo", "bash", "sh", "ssh", "kubectl", "mpirun", "ray"}
	wrapperValue   = regexp.MustCompile(`^(-.*|[A-Za-z_]\w*=.*|[\d,.:-]+[smhd]?)$`)
)

// splitProgram cuts a command into what is asked for help and what is checked:
// at the first word that begins with two dashes.
func splitProgram(words []string) (prefix, args []string, err error) {
	at := 0
	for slices.Contains(plainWrappers, filepath.Base(words[at])) {
		at++
		for at < len(words) && wrapperValue.MatchString(words[at]) {
			at++
		}
		if at == len(words) {
			return nil, nil, fmt.Errorf("launch.command: %s runs no command", words[0])
		}
	}
	if slices.Contains(opaqueWrappers, filepath.Base(words[at])) {
		return nil, nil, fmt.Errorf("%w: %s has options of its own before the engine's", ErrUnchecked, words[at])
	}
	for end := at + 1; end < len(words); end++ {
		if strings.HasPrefix(words[end], "--") {
			return words[:end], slices.Clone(words[end:]), nil
		}
	}
	return words, nil, nil
}

// askHelp runs the command for its help and reads the options out of it. vLLM
// shows its options only with --help=all, older ones with --help.
func askHelp(ctx context.Context, prefix, env []string, vllm bool) (options, error) {
	first, second := "--help", "--help=all"
	if vllm {
		first, second = second, first
	}
	known, text, err := helpOptions(ctx, append(slices.Clone(prefix), first), env)
	if err != nil {
		return nil, err
	}
	if vllm && len(known) <= fewOptions || !vllm && strings.Contains(text, second) {
		more, _, err := helpOptions(ctx, append(slices.Clone(prefix), second), env)
		if err != nil {
			return nil, err
		}
		if len(more) > len(known) {
			known = more
		}
	}
	if len(known) == 0 {
		return nil, fmt.Errorf("%w: %s --help shows no options", ErrUnchecked, strings.Join(prefix, " "))
	}
	return known, nil
}

func helpOptions(ctx context.Context, argv, env []string) (options, string, error) {
	text, err := runHelp(ctx, argv, env)
	return readHelp(text), text, err
}

// runHelp returns what a command prints, to either stream and with whatever
// exit status. It is killed, with its children, when it takes too long.
func runHelp(ctx context.Context, argv, env []string) (string, error) {
	limited, cancel := context.WithTimeout(ctx, helpTimeout)
	defer cancel()
	cmd := exec.CommandContext(limited, argv[0], argv[1:]...)
	out := &boundedBuffer{}
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Env = append(os.Environ(), "COLUMNS=200", "NO_COLOR=1", "TERM=dumb")
	cmd.Env = append(cmd.Env, env...)
	ownGroup(cmd)
	cmd.Cancel = func() error { return killGroup(cmd.Process.Pid) }
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case limited.Err() != nil:
		return "", fmt.Errorf("%w: %s took longer than %v", ErrUnchecked, strings.Join(argv, " "), helpTimeout)
	case err != nil && cmd.ProcessState == nil:
		return "", fmt.Errorf("launch.command: %w", err)
	}
	return out.String(), nil
}

// boundedBuffer keeps the beginning of what is written.
type boundedBuffer struct{ bytes.Buffer }

func (b *boundedBuffer) Write(p []byte) (int, error) {
	if room := maxHelp - b.Len(); room > 0 {
		b.Buffer.Write(p[:min(len(p), room)])
	}
	return len(p), nil
}
