// Package scan walks JSON where it lies: it validates as it goes, copies nothing, and returns offsets.
//
// It is what the request view, the event peeks and the scoring transforms share, so that one notion of JSON
// holds everywhere: as strict as encoding/json (which also means that bytes inside a string need not be UTF-8),
// and no deeper than [MaxDepth].
//
// In reading order: scan.go (values, numbers, literals), string.go (strings and their escapes), walk.go
// (objects and arrays member by member).
package scan
