package sse

import "bytes"

// Event is what an event says. Its bytes lie in the event, or in scratch where the data has several lines.
type Event struct {
	Name    []byte // the event field; nil: none
	Data    []byte // the data, its lines joined by LF
	HasData bool   // without, clients ignore the event
}

// Parse takes ev, one whole event or the rest of a stream, apart. scratch is used where data has several lines
// and kept for the next call; it may be nil only if such data may allocate.
func Parse(ev []byte, scratch *[]byte) Event {
	var e Event
	lines := 0
	ev = bytes.TrimPrefix(ev, []byte(bom))
	for len(ev) > 0 {
		var line []byte
		line, ev = cutLine(ev)
		name, value, _ := bytes.Cut(line, []byte{':'})
		if len(value) > 0 && value[0] == ' ' {
			value = value[1:]
		}
		switch string(name) {
		case "event":
			e.Name = value
		case "data":
			if lines++; lines == 1 {
				e.Data = value
				continue
			}
			var joined []byte
			if lines == 2 {
				if scratch != nil {
					joined = (*scratch)[:0]
				}
				joined = append(joined, e.Data...)
			} else {
				joined = e.Data
			}
			e.Data = append(append(joined, '\n'), value...)
			if scratch != nil {
				*scratch = e.Data
			}
		}
	}
	e.HasData = lines > 0
	return e
}

func cutLine(b []byte) (line, rest []byte) {
	end := seek(b, 0, '\n')
	end = seek(b[:end], 0, '\r')
	line, rest = b[:end], b[end:]
	switch {
	case len(rest) > 1 && rest[0] == '\r' && rest[1] == '\n':
		rest = rest[2:]
	case len(rest) > 0:
		rest = rest[1:]
	}
	return line, rest
}
