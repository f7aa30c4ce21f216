// Package protocol is a black-box test suite for endpoint pickers: processes that
// tell Envoy through ext_proc, by the endpoint picker protocol of the Gateway API
// inference extension, which server a request goes to.
//
// [Run] drives a running picker over gRPC and, if it is given an Envoy, through
// that Envoy with HTTP servers of its own as endpoints. Each [Check] enforces one
// rule and says where the rule comes from: the protocol, Envoy, HTTP or gRPC, or
// our own opinion. `kvlane protocol-test` is the command.
//
// Invariant: a check passes only if it was run and the picker kept the rule. What
// needs something that the target does not declare is not applicable, with the
// reason.
//
// The suite knows nothing of the picker but what [Target] says. One way to give it
// endpoints belongs to this project: with Target.Log the suite writes them to the
// picker's log, and can then take them away too. Any other picker has to know the
// endpoints that its operator lists.
//
// It does not start or stop the picker, does not judge how good its choices are,
// and does not measure.
package protocol
