// Package child runs other programs so that none outlives its parent.
//
// Invariant: when a [Process] is done, every process of its group is gone. If
// the parent is killed without a chance to clean up (kill -9), the kernel kills
// the child, and a guard (a one-line shell script that leads the group and waits
// for the parent's end of a pipe to close) kills the rest of the group.
//
// It does not restart anything, and it cannot see a descendant that moved
// itself into another process group. Linux only.
package child
