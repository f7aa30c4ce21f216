package porttest

import (
	"net"
	"os"
	"testing"
)

// Ports that are taken are not given twice, and can be listened on.
func TestTake(t *testing.T) {
	seen := map[int]bool{}
	for range 50 {
		base := Take(t, 7)
		for port := base; port < base+7; port++ {
			if seen[port] {
				t.Fatalf("port %d was given twice", port)
			}
			seen[port] = true
		}
	}
	l, err := net.Listen("tcp", Address(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// A port is free again once its test has ended, and not before.
func TestLock(t *testing.T) {
	dir := t.TempDir()
	port := Take(t, 1)
	held, err := claim(dir, port, 1)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := claim(dir, port, 1); err == nil {
		release(again)
		t.Error("a held port was given again")
	}
	release(held)
	again, err := claim(dir, port, 1)
	if err != nil {
		t.Fatalf("a released port was refused: %v", err)
	}
	release(again)
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("lock files: %v, %v", entries, err)
	}
}
