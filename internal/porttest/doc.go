// Package porttest hands loopback ports to tests that must know a port before
// something listens there: a child process, a server that restarts at its
// address, an address where nobody answers.
//
// Asking the kernel for a free port, closing it and binding it again later is a
// race: meanwhile the kernel may give it to any outgoing connection, or to
// another test. Ports from here lie below the range that Linux hands out itself
// (from 32768 on by default), and each is held by a file lock until its test
// ends, so no other test process on the machine gets it.
//
// It is for tests only, and it does not listen itself.
package porttest
