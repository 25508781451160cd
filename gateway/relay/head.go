package relay

// Head is the beginning of the answer's body, as far as it has come: of a
// stream the events that are ready to be sent. It is valid until Relay.
func (a Answer) Head() []byte {
	switch {
	case a.Complete:
		return a.x.resp.Body()
	case a.Streamed:
		return a.x.stream.buf[:a.x.stream.ready]
	default:
		return a.x.body
	}
}
