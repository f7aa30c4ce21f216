package porttest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
)

// The ports handed out, a range that neither Linux's ephemeral ports nor common
// services use.
const (
	first = 15000
	last  = 29999
)

// tries bounds the search for consecutive ports.
const tries = 500

// Take returns the first of n consecutive TCP ports on 127.0.0.1, n at least 1.
// Nobody listens on them now, and they belong to t until it and its cleanups
// that were registered later have ended. It fails t if there are none.
func Take(t testing.TB, n int) int {
	t.Helper()
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("kvlane-ports-%d", os.Getuid()))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatalf("take ports: %v", err)
	}
	var err error
	for range tries {
		base := first + rand.IntN(last-first-n+2)
		var held []*os.File
		if held, err = claim(dir, base, n); err == nil {
			t.Cleanup(func() { release(held) })
			return base
		}
	}
	t.Fatalf("found no %d consecutive free ports: %v", n, err)
	return 0
}

// Address is 127.0.0.1 and a port of [Take].
func Address(t testing.TB) string {
	t.Helper()
	return Join(Take(t, 1))
}

// Join writes 127.0.0.1 and the port as an address.
func Join(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// claim locks n ports and sees that they are free.
func claim(dir string, base, n int) (held []*os.File, err error) {
	defer func() {
		if err != nil {
			release(held)
		}
	}()
	for port := base; port < base+n; port++ {
		f, err := os.OpenFile(filepath.Join(dir, strconv.Itoa(port)), os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return held, err
		}
		held = append(held, f)
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
			return held, fmt.Errorf("lock port %d: %w", port, err)
		}
		l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", Join(port))
		if err != nil {
			return held, err
		}
		if err := l.Close(); err != nil {
			return held, err
		}
	}
	return held, nil
}

// release gives ports back. The files stay: removing one that another process
// has just opened would let two of them lock the same port.
func release(held []*os.File) {
	var errs []error
	for _, f := range held {
		errs = append(errs, f.Close())
	}
	if err := errors.Join(errs...); err != nil {
		panic(err) // a file of ours that cannot be closed is a fault of this package
	}
}
