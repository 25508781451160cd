// Package metrics holds every Prometheus metric of Penstock.
//
// Its parts, in reading order:
//
//   - names.go: every name, help text, unit, label and bucket, in one place
//   - labels.go: what values a label may take; anything else is "other"
//   - metrics.go: Metrics, made once by New, and what concerns the whole process
//   - handles.go: Client (model × key), Model and Replica, whose children are
//     looked up once, so that a request pays no label lookup
//   - gauges.go: what is read from its owner at each scrape instead of counted
//   - expose.go: the page itself, as text or as OpenMetrics with exemplars
//
// Counters and histograms are pushed by whoever sees the event. Gauges are
// pulled: the gateway hands over one function that reads the router, the queue
// and the engines when somebody scrapes. What is pulled cannot drift, and a
// replica that went is gone from the next page.
//
// Everything here may be called from any number of goroutines at once.
package metrics
