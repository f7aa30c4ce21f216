package kvindex

// Match is what one worker's rank holds of a chain of blocks.
type Match struct {
	Worker WorkerID
	Rank   uint16
	// Depth[t] is the number of leading blocks held in tier t or a faster one,
	// so it never falls with t.
	Depth [NumTiers]uint32
}
