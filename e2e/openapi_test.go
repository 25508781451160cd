package e2e

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"penstock/e2e/harness"
	"penstock/gateway"
)

func TestOpenAPIDocumentIsValid(t *testing.T) {
	c := readContract(t)
	if err := c.doc.Validate(t.Context(), openapi3.EnableSchemaPatternValidation()); err != nil {
		t.Error(err)
	}
	for path, item := range c.doc.Paths.Map() {
		for method, op := range item.Operations() {
			if op.Summary == "" || len(op.Tags) == 0 {
				t.Errorf("%s %s has no summary or no tag", method, path)
			}
		}
	}
}

// TestOpenAPIDescribesEveryPath holds the document's paths against the tables
// that the server makes its routes of, in both directions.
func TestOpenAPIDescribesEveryPath(t *testing.T) {
	c := readContract(t)
	var described, served []string
	for path, item := range c.doc.Paths.Map() {
		for method := range item.Operations() {
			for _, s := range c.listeners(item) {
				described = append(described, s+" "+method+" "+path)
			}
		}
	}
	add := func(listener string, paths []gateway.Path) {
		for _, p := range paths {
			for _, m := range p.Methods {
				served = append(served, listener+" "+m+" "+p.Path)
			}
		}
	}
	add(clientPort, gateway.ClientPaths())
	add(adminPort, gateway.AdminPaths())
	for _, lack := range missing(served, described) {
		t.Errorf("%s is served and not described", lack)
	}
	for _, lack := range missing(described, served) {
		t.Errorf("%s is described and not served", lack)
	}
}

// The listeners, by the ports that the document gives them.
const (
	clientPort = "8080"
	adminPort  = "9090"
)

// listeners are those that a path is on.
func (c *contract) listeners(item *openapi3.PathItem) []string {
	servers := c.doc.Servers
	if len(item.Servers) > 0 {
		servers = item.Servers
	}
	var all []string
	for _, s := range servers {
		all = append(all, s.URL[strings.LastIndexByte(s.URL, ':')+1:])
	}
	return all
}

// missing are those of all that others lack.
func missing(all, others []string) []string {
	return slices.DeleteFunc(slices.Sorted(slices.Values(all)), func(s string) bool { return slices.Contains(others, s) })
}

// TestOpenAPIListsEveryErrorCode holds the document's codes, and the table of
// them, against those in the gateway's source.
func TestOpenAPIListsEveryErrorCode(t *testing.T) {
	c := readContract(t)
	codes := c.names(c.schema("ErrorCode"))
	if rows := slices.Sorted(maps.Keys(c.statuses)); !slices.Equal(rows, codes) {
		t.Errorf("the table lacks %v, the enumeration %v", missing(codes, rows), missing(rows, codes))
	}
	for _, alternative := range c.schema("RequestCode").AnyOf {
		if alternative.Ref == "" {
			codes = append(codes, c.names(alternative.Value)...)
		}
	}
	source := sourceCodes(t)
	if len(source) < 20 {
		t.Fatalf("found only the codes %v in the source", source)
	}
	for _, lack := range missing(source, codes) {
		t.Errorf("the code %s is in the source and not in the document", lack)
	}
	for _, lack := range missing(codes, source) {
		t.Errorf("the code %s is in the document and not in the source", lack)
	}
}

// sourceCodes are the error codes in the source of gateway and its subpackages.
func sourceCodes(t *testing.T) []string {
	t.Helper()
	found := map[string]bool{}
	for _, f := range gatewaySource(t) {
		ast.Inspect(f, func(n ast.Node) bool {
			for _, e := range codeExpressions(f.Name.Name, n) {
				lit, ok := e.(*ast.BasicLit)
				if !ok {
					continue // a code that comes from elsewhere
				}
				if s, err := strconv.Unquote(lit.Value); err == nil && s != "" {
					found[s] = true
				}
			}
			return true
		})
	}
	return slices.Sorted(maps.Keys(found))
}

// codeExpressions are what a node says of codes: a field Code, an assignment to
// it, a constant Code…, or the argument of a function that makes an error.
func codeExpressions(pkg string, n ast.Node) []ast.Expr {
	switch n := n.(type) {
	case *ast.KeyValueExpr:
		if id, ok := n.Key.(*ast.Ident); ok && id.Name == "Code" {
			return []ast.Expr{n.Value}
		}
	case *ast.AssignStmt:
		var all []ast.Expr
		for i, to := range n.Lhs {
			sel, ok := to.(*ast.SelectorExpr)
			if ok && strings.EqualFold(sel.Sel.Name, "code") && len(n.Lhs) == len(n.Rhs) {
				all = append(all, n.Rhs[i])
			}
		}
		return all
	case *ast.ValueSpec:
		if strings.HasPrefix(n.Names[0].Name, "Code") {
			return n.Values
		}
	case *ast.CallExpr:
		return codeArgument(pkg, n)
	}
	return nil
}

// codeArgument is the code that a call of invalid or serverError is given. The
// body package's invalid has none: it uses a constant.
func codeArgument(pkg string, call *ast.CallExpr) []ast.Expr {
	id, ok := call.Fun.(*ast.Ident)
	switch {
	case !ok || pkg != "gateway":
	case id.Name == "serverError":
		return call.Args[1:2]
	case id.Name == "invalid":
		return call.Args[:1]
	}
	return nil
}

// gatewaySource parses the gateway's packages, without tests.
func gatewaySource(t *testing.T) []*ast.File {
	t.Helper()
	var files []*ast.File
	for _, dir := range []string{"gateway", "gateway/body", "gateway/relay"} {
		names, err := filepath.Glob(filepath.Join(harness.Root(), dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			f, err := parser.ParseFile(token.NewFileSet(), name, text, 0)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, f)
		}
	}
	return files
}

// TestOpenAPIListsEveryRequestHeader holds the document's request headers
// against those that the gateway's source reads by name.
func TestOpenAPIListsEveryRequestHeader(t *testing.T) {
	c := readContract(t)
	// What every HTTP server reads, or OpenAPI describes elsewhere.
	described := []string{"accept", "authorization"}
	for _, p := range c.doc.Components.Parameters {
		described = append(described, strings.ToLower(p.Value.Name))
	}
	for _, s := range c.doc.Components.SecuritySchemes {
		described = append(described, strings.ToLower(s.Value.Name))
	}
	var read []string
	for _, f := range gatewaySource(t) {
		if f.Name.Name != "gateway" {
			continue // the others read engines' answers
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				read = append(read, headerRead(call)...)
			}
			return true
		})
	}
	if len(read) < 5 {
		t.Fatalf("found only the headers %v in the source", read)
	}
	for _, lack := range missing(read, described) {
		t.Errorf("the header %s is read and not described", lack)
	}
}

// headerRead is the header that a call reads by its name: Header.Peek("…"),
// Header.Get("…"), or isOn("…").
func headerRead(call *ast.CallExpr) []string {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || len(call.Args) != 1 {
		return nil
	}
	lit, ok := call.Args[0].(*ast.BasicLit)
	if !ok {
		return nil
	}
	of, _ := sel.X.(*ast.SelectorExpr)
	if sel.Sel.Name != "isOn" && (of == nil || of.Sel.Name != "Header" || !slices.Contains([]string{"Peek", "PeekAll", "Get"}, sel.Sel.Name)) {
		return nil
	}
	name, err := strconv.Unquote(lit.Value)
	if err != nil {
		return nil
	}
	return []string{strings.ToLower(name)}
}
