// Package memlog is the embedded log: it keeps the present state of all workers
// in memory, takes records from agents and passes them to every tail.
//
// [Log] is the log itself, [Register] serves it on gRPC, [Client] is its other
// end; Log and Client are both a kvindex.Log.
//
// Invariant: what a tail has received at any moment, applied in order to a
// kvindex.Index, gives for every owner the blocks that the log holds at one
// moment of its history, and moments only advance. A record that the log
// refuses has changed nothing, in the log and in every tail.
//
// A tail begins with a snapshot: for each worker the last Hello and Load, for
// each owner a Cleared with the owner's last Seq followed by its blocks, the
// learned texts, and at last an empty batch, once. All of these records but the
// Cleared have Seq 0, so the next live record of an owner is the next number,
// however many records the snapshot took. A reader that kept its index over a broken tail applies the snapshot to
// it: an owner that is already there is skipped, one that is behind is rebuilt.
// A worker that said Bye meanwhile is not named; its lease ends it at the reader.
//
// It does not store anything on disk, does not end the leases of silent workers
// (who does calls [Log.Drop]), and does not know what a prompt is. A log that
// was restarted is empty: writers notice by its id ([Client.LogID]) or by the
// *kvindex.GapError that their next record meets, and send what they hold.
package memlog
