package picker

// HandOff is why a request's prompt is prefilled on another worker than the one
// that answers, or is not.
type HandOff uint8

// The reasons; all but HandOffRemote keep the prefill where the answer is made.
const (
	// HandOffNone: the pool has no prefill workers, or the path has no model.
	HandOffNone HandOff = iota
	// HandOffRemote: it is prefilled elsewhere.
	HandOffRemote
	// HandOffNoPrefiller: no prefill worker that serves the request is ready and
	// within its limits.
	HandOffNoPrefiller
	// HandOffQueue: without its queue the prefill worker would be better.
	HandOffQueue
	// HandOffTransfer: without the transfer it would be better.
	HandOffTransfer
	// HandOffCached: most of the prompt needs no prefill here.
	HandOffCached
	// HandOffLocal: the worker that answers has time for it.
	HandOffLocal
	NumHandOffs = 7
)

// String is the reason as metrics label it.
func (h HandOff) String() string {
	return [NumHandOffs]string{"none", "remote", "no-prefiller", "queue", "transfer", "cached", "local"}[h]
}

// handOff says why the choice is as it is; of several reasons the first.
func (k *picking) handOff() HandOff {
	c := &k.choice
	switch {
	case k.req.Model == "" || !k.board.split:
		return HandOffNone
	case c.remote:
		return HandOffRemote
	case c.prefill < 0:
		return HandOffNoPrefiller
	}
	p, leg, far := k.partner(c.paired)
	bar := k.leg(c.local) + k.board.candidates[c.local].decode + k.rates[k.board.candidates[c.local].class].decode - k.fleet.Transfer.SetupMs
	after := k.after(c.paired)
	switch {
	case leg-k.board.candidates[p].queue+k.transfer(c.paired, far)+after < bar:
		return HandOffQueue
	case leg+after < bar:
		return HandOffTransfer
	case 2*int(k.cached[c.local]) > k.req.ISL:
		return HandOffCached
	default:
		return HandOffLocal
	}
}
