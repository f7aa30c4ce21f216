// Package scorerv1 is the service that a scorer out of process offers, generated
// from scorer.proto. test/examples/scorer-grpc is a server to start from.
//
// Within a major version fields are only added; a server answers what it knows. It
// holds no code of ours: package extproc/scoring is the client.
package scorerv1
