package gateway

import (
	"strings"

	"github.com/valyala/fasthttp"
)

// Path is a path of one of the listeners, as docs/openapi.yaml describes it. A
// test holds that document against these lists.
type Path struct {
	Path    string   // {…} stands for a name
	Methods []string // GET takes HEAD in
}

// ClientPaths is every path of the client listener.
func ClientPaths() []Path {
	model, response := routesWithIDs()
	var all []Path
	for _, rt := range append(routes(), *model, *response) {
		p := Path{Path: rt.path}
		for _, m := range rt.methods {
			if m != fasthttp.MethodHead {
				p.Methods = append(p.Methods, m)
			}
		}
		all = append(all, p)
	}
	return all
}

// AdminPaths is every path of the operators' listener. A path with several
// methods is there once for each.
func AdminPaths() []Path {
	clean := strings.NewReplacer("...}", "}", "{$}", "")
	var all []Path
	for _, rt := range adminRoutes() {
		method, path, _ := strings.Cut(rt.pattern, " ")
		paths := rt.paths
		if paths == nil {
			paths = []string{clean.Replace(path)}
		}
		for _, p := range paths {
			all = append(all, Path{p, []string{method}})
		}
	}
	return all
}
