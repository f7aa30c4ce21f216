// Package e2e tests the whole system through a real Envoy: it builds the binary,
// starts stacks with `kvlane up`, and is their client. `make e2e` installs what
// it needs first.
package e2e
