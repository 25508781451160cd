package structure

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	root         = "../.."
	module       = "penstock"
	maxFileLines = 600
	maxMainLines = 60
)

// goFile is one parsed source file of the main module.
type goFile struct {
	path string // from the root, with slashes
	test bool
	src  []byte
	ast  *ast.File
	fset *token.FileSet
}

func (f *goFile) dir() string { return filepath.ToSlash(filepath.Dir(f.path)) }

func (f *goFile) imports() []string {
	var paths []string
	for _, spec := range f.ast.Imports {
		paths = append(paths, strings.Trim(spec.Path.Value, `"`))
	}
	return paths
}

// load parses every Go file of the main module. Folders with a go.mod of their
// own, hidden ones and test data are not part of it.
func load(t *testing.T) []*goFile {
	t.Helper()
	var files []*goFile
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel := filepath.ToSlash(strings.TrimPrefix(filepath.Clean(path), filepath.Clean(root)+string(filepath.Separator)))
		if d.IsDir() {
			if path != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "node_modules" || hasModule(path)) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(rel, ".go") {
			return nil
		}
		src, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		fset := token.NewFileSet()
		parsed, err := parser.ParseFile(fset, path, src, parser.ParseComments)
		if err != nil {
			return err
		}
		files = append(files, &goFile{rel, strings.HasSuffix(rel, "_test.go"), src, parsed, fset})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Fatalf("no Go file found under %s", root)
	}
	return files
}

func hasModule(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return err == nil
}

// allowed says what each layer may import of ours, besides its own subpackages.
func allowed() map[string][]string {
	base := []string{"metrics", "configs"}
	return map[string][]string{
		"metrics": nil,
		"configs": nil,
		"router":  base,
		"engine":  base,
		"limits":  base,
		"gateway": append([]string{"router", "engine", "limits"}, base...),
		"cmd":     append([]string{"gateway", "router", "engine", "limits"}, base...),
		"e2e":     append([]string{"cmd", "gateway", "router", "engine", "limits"}, base...),
	}
}

// layer is the top folder of a package, and whether the path is ours at all.
func layer(importPath string) (string, bool) {
	rest, ours := strings.CutPrefix(importPath, module+"/")
	top, _, _ := strings.Cut(rest, "/")
	return top, ours
}

func checkImports(layers map[string][]string, f *goFile) []string {
	own, _ := layer(module + "/" + f.path)
	may, known := layers[own]
	if !known {
		return []string{fmt.Sprintf("%s: folder %s is not in the design: cmd, gateway, router, engine, limits, metrics, configs, e2e", f.path, own)}
	}
	var bad []string
	for _, path := range f.imports() {
		top, ours := layer(path)
		if ours && top != own && !slices.Contains(may, top) {
			bad = append(bad, fmt.Sprintf("%s imports %s: %s may import only %s", f.path, path, own, strings.Join(may, ", ")))
		}
	}
	return bad
}

func TestImportsFlowOneWay(t *testing.T) {
	layers := allowed()
	for _, f := range load(t) {
		if f.test {
			continue // a test may start what it wants to see working
		}
		for _, line := range checkImports(layers, f) {
			t.Error(line)
		}
	}
}

func TestImportRuleFindsOffenders(t *testing.T) {
	for src, want := range map[string]bool{
		`package router; import _ "penstock/metrics"`:         false,
		`package router; import _ "penstock/limits"`:          true,
		`package router; import _ "penstock/gateway/relay"`:   true,
		`package router; import _ "penstock/router/internal"`: false,
	} {
		fset := token.NewFileSet()
		parsed, err := parser.ParseFile(fset, "x.go", src, 0)
		if err != nil {
			t.Fatal(err)
		}
		f := &goFile{path: "router/x.go", ast: parsed}
		if got := len(checkImports(allowed(), f)) > 0; got != want {
			t.Errorf("%s: offence found: %v, want %v", src, got, want)
		}
	}
}

// The router is pure: what it decides can be replayed in accelerated time.
func TestRouterHasNoClockAndNoIO(t *testing.T) {
	for _, f := range load(t) {
		if f.test || f.dir() != "router" {
			continue
		}
		for _, path := range f.imports() {
			if path == "os" || path == "io" || path == "net" || strings.HasPrefix(path, "net/") || path == "context" {
				t.Errorf("%s imports %s: the router does no I/O", f.path, path)
			}
		}
		for _, call := range selectors(f, "time", "Now", "Since", "Until", "After", "AfterFunc", "NewTimer", "NewTicker", "Tick", "Sleep") {
			t.Errorf("%s: the router takes the time as an argument", call)
		}
	}
}

// A test may pause between two looks at a condition, in a loop that has a
// deadline; it may not hope that something is over after a while.
func TestNoTestSleepsAndHopes(t *testing.T) {
	for _, f := range load(t) {
		if !f.test || bytes.Contains(f.src, []byte("testing/synctest")) { // in a bubble no time passes
			continue
		}
		for _, call := range hopefulSleeps(f) {
			t.Errorf("%s: poll a condition with a deadline, or use testing/synctest", call)
		}
	}
}

// hopefulSleeps are the sleeps outside of loops that compare times.
func hopefulSleeps(f *goFile) []string {
	polled := 0
	ast.Inspect(f.ast, func(n ast.Node) bool {
		loop, ok := n.(*ast.ForStmt)
		if !ok || !comparesTimes(loop) {
			return true
		}
		polled += len(selectorsIn(f, loop, "time", "Sleep"))
		return false // what is nested in it is counted
	})
	all := selectors(f, "time", "Sleep")
	if len(all) == polled {
		return nil
	}
	return all
}

func comparesTimes(loop ast.Node) bool {
	found := false
	ast.Inspect(loop, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok && slices.Contains([]string{"After", "Before", "Since", "Until"}, sel.Sel.Name) {
			found = true
		}
		return !found
	})
	return found
}

func TestSleepRuleFindsOffenders(t *testing.T) {
	for body, want := range map[string]int{
		`time.Sleep(1)`:               1,
		`for { time.Sleep(1) }`:       1,
		`for !ok() { time.Sleep(1) }`: 1,
		`for d := x; !ok(); time.Sleep(1) { if time.Now().After(d) { t.Fatal() } }`: 0,
		`for { if time.Since(began) > 9 { t.Fatal() }; time.Sleep(1) }`:             0,
	} {
		fset := token.NewFileSet()
		parsed, err := parser.ParseFile(fset, "x_test.go", "package x; func f() { "+body+" }", 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := len(hopefulSleeps(&goFile{path: "x_test.go", ast: parsed, fset: fset})); got != want {
			t.Errorf("%s: %d offences found, want %d", body, got, want)
		}
	}
}

// selectors finds uses of pkg.Name, as "file:line: pkg.Name".
func selectors(f *goFile, pkg string, names ...string) []string {
	return selectorsIn(f, f.ast, pkg, names...)
}

func selectorsIn(f *goFile, root ast.Node, pkg string, names ...string) []string {
	var found []string
	ast.Inspect(root, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if id, ok := sel.X.(*ast.Ident); ok && id.Name == pkg && slices.Contains(names, sel.Sel.Name) {
			found = append(found, fmt.Sprintf("%s:%d: %s.%s", f.path, f.fset.Position(sel.Pos()).Line, pkg, sel.Sel.Name))
		}
		return true
	})
	return found
}

func TestEveryPackageSaysWhatItIs(t *testing.T) {
	docs, packages := map[string]bool{}, map[string]string{}
	for _, f := range load(t) {
		if f.test {
			continue
		}
		packages[f.dir()] = f.ast.Name.Name
		if f.ast.Doc == nil {
			continue
		}
		want := "Package " + f.ast.Name.Name + " "
		if f.ast.Name.Name == "main" {
			want = "Command "
		}
		if text := f.ast.Doc.Text(); strings.HasPrefix(text, want) {
			docs[f.dir()] = true
		} else {
			t.Errorf("%s: package comment begins %.40q, want %q", f.path, text, want+"…")
		}
	}
	for dir, name := range packages {
		if !docs[dir] {
			t.Errorf("package %s in %s has no comment that says what it is", name, dir)
		}
	}
}

func TestFilesStayReadable(t *testing.T) {
	for _, f := range load(t) {
		limit := maxFileLines
		if f.path == "cmd/penstock/main.go" {
			limit = maxMainLines
		}
		if lines := bytes.Count(f.src, []byte("\n")); lines > limit && !ast.IsGenerated(f.ast) {
			t.Errorf("%s has %d lines, at most %d", f.path, lines, limit)
		}
	}
}

func TestNothingRunsBeforeMain(t *testing.T) {
	for _, f := range load(t) {
		for _, decl := range f.ast.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
				t.Errorf("%s: func init: wire by hand, in one place", f.path)
			}
		}
	}
}
