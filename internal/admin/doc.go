// Package admin is the forwarder's window for operators: health, metrics and what waits,
// served over HTTP, and the client that reads it.
//
//	GET  /livez         200 while the forwarder's loop turns
//	GET  /readyz        200, or 503 and every reason in words, one a line (JSON on request)
//	GET  /metrics       Prometheus
//	GET  /parked        what waits, and why, as JSON
//	POST /parked/retry  try everything that waits now
//	POST /retire        give up all lanes to other replicas
//	GET  /version
//	GET  /debug/pprof/  only where asked for
//
// It owns the listener and the server's goroutines. It knows nothing of lanes or brokers:
// the forwarder is seen through Status, which this package declares.
//
// Rules that it enforces: listening fails in Start and never later; Stop waits for the
// requests under way, within its context; a browser on another site can neither read what is
// parked nor trigger a retry. There is no authentication: whoever reaches the listener may
// use it, which is why the default listener is on loopback.
package admin
