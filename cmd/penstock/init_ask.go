package main

import (
	"bufio"
	"fmt"
	"io"
	"strings"
)

// asker puts questions on stderr and reads one line for each; an empty line,
// or the end of the input, is the default.
type asker struct {
	in  *bufio.Scanner
	out io.Writer
}

func askInit(e *env, o *initOptions) error {
	a := asker{in: bufio.NewScanner(e.stdin), out: e.stderr}
	fmt.Fprintln(e.stderr, "A few questions; Enter takes what is in brackets.")
	o.engines = fields(a.ask("URLs of the engine servers, separated by spaces", "none: the embedded engine, for trials", ""))
	if len(o.engines) > 0 && o.model == "" {
		o.model = a.ask("Name of the model for clients", "what the engines serve", "")
	}
	o.listen = a.ask("Address for clients", o.listen, o.listen)
	o.admin = a.ask("Address for operators (metrics, status)", o.admin, o.admin)
	if len(o.clients) == 0 {
		o.clients = fields(a.ask("Names of clients that get a key, separated by spaces", "none: open to all", ""))
	}
	return a.in.Err()
}

func (a asker) ask(question, shown, silent string) string {
	fmt.Fprintf(a.out, "%s [%s]: ", question, shown)
	if !a.in.Scan() {
		fmt.Fprintln(a.out)
		return silent
	}
	if answer := strings.TrimSpace(a.in.Text()); answer != "" {
		return answer
	}
	return silent
}

// fields splits at spaces and commas.
func fields(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ' ' || r == ',' || r == '\t' })
}
