// Package extproc answers Envoy's external-processing streams: it reads a
// request, asks the picker where to send it, and tells Envoy.
//
// One HTTP request is one gRPC stream. [Server] runs the streams; what a stream
// does with each message is a state machine without I/O or clock (stream.go), so
// that scripts in testdata can drive it. [Router] turns headers and body into
// a plan. Where flow control is on, a request for which no worker has room waits in
// the gate (gate.go), the server's one goroutine. The HTTP status of every refusal is
// chosen in one function (reply.go).
//
// Invariants:
//   - No stream ends with a gRPC error. Every request gets a plan, a plan by
//     load only, or an HTTP answer.
//   - The headers are answered once, before any piece of the body. In
//     full-duplex mode the body goes back, and its end is marked once. It goes back
//     byte for byte, but for the values that the operator has changed: the model where
//     a rewrite says so, the priority for the engine. These are spliced, the length is
//     the new body's.
//   - A booking is closed exactly once, whatever ends the stream.
//   - Bytes of bodies are held only within the configured total; a stream over
//     it is refused before its bytes are kept.
//   - A client cannot set a header that steers a request ([RoutingHeaders]).
//
// What it does not do: it does not read answers (it passes them on where a gateway
// sends them; the model's name in them stays the worker's), and does not decode
// compressed bodies: those are routed by load only, in every encoding. A body that
// cannot be read is not rewritten. Where its beginning is there and names a model
// that a rule changes, the answer is a 503: sent on, it would become a 404 for a name
// that only the configuration knows. Where nothing of it is there (compressed, or a
// gateway that sends no bodies), it goes on as it is, counted as rewrite-unread.
package extproc
