package picker

import (
	"encoding/binary"
	"math"
	"math/bits"
	"slices"
	"strings"

	"github.com/zeebo/xxh3"

	"github.com/kvlane/kvlane/internal/timing"
	"github.com/kvlane/kvlane/kvindex"
)

// board holds the candidates as a pick reads them: what the price depends on in
// one small array, the rest beside it. [Pick] makes one of a fleet, a [Pool]
// keeps one.
type board struct {
	candidates []candidate // sorted by worker, then rank
	places     []place     // of the same candidates
	classes    []class
	menus      []menu
	spots      []spot
	names      names
	// split: there are prefill-only workers.
	split bool
	// hosts: there is more than one.
	hosts bool
	// seats are places by the seat of a match, as far as met; nil where they are not
	// kept. A place counts only if the names agree.
	seats []int32
}

// maxSeats bounds board.seats; an index that has more is searched.
const maxSeats = 1 << 16

// candidate is what the price of an endpoint depends on.
type candidate struct {
	queue    float64 // ms
	requests float64
	// room is what a prompt may have at most, tokens; infinite without a limit.
	room        float64
	owed, spare float64 // ms, see debt
	// weight is what a prefill's time counts for: its own, and the delay to the
	// requests that are there.
	weight float64
	// decode is the decode step with one sequence more that has no tokens, ms.
	decode float64
	key    uint64 // of ties
	class  uint32
	menu   uint32
	spot   uint32
	out    exclusion // what rules it out for any request
	// decodes: something does there.
	decodes bool
}

// figures sets what the load decides.
func (c *candidate) figures(requests, decoding, context int, f *Fleet, m *timing.Model) {
	c.requests = float64(requests)
	delay := f.Alpha * c.requests
	if f.MaxDelay > 0 {
		delay = min(delay, f.MaxDelay)
	}
	c.weight = 1 + delay
	c.decode, c.decodes = m.DecodeMs(decoding+1, context), decoding > 0
}

// reserve sets the room of a worker with a KV cache of so many tokens, 0 if unknown.
// One without requests takes any prompt.
func (c *candidate) reserve(tokens, pledged int, f *Fleet) {
	c.room = math.Inf(1)
	if f.MaxKV > 0 && tokens > 0 && c.requests > 0 {
		c.room = f.MaxKV*float64(tokens) - float64(pledged)
	}
}

// step is the decode step that runs there, ms.
func (c *candidate) step(r *rate) float64 {
	if !c.decodes {
		return 0
	}
	return c.decode - r.sequence
}

// place is where a candidate is.
type place struct {
	Target
	host, address uint64 // hashes of the address without and with its port
}

// class is what equal engines have in common.
type class struct {
	timing  timing.Model
	kvBytes int // per token
	// blockSize is in tokens.
	blockSize int
	// loads are the ms to bring a token back from each tier; 0: it does not. slow: it
	// does from some.
	loads [kvindex.NumTiers]float64
	slow  bool
}

// menu is what equal workers offer.
type menu struct{ served, adapters, loading []string }

// spot is where equal workers are, by the numbers of the names; 0 is unknown.
type spot struct{ zone, rack, domain int }

// names numbers the zones, racks and domains in the order in which they are met.
type names struct{ zones, racks, domains []string }

// number is the place of a name in the list, which gets it if it is new.
func number(list *[]string, name string) int {
	if len(*list) == 0 {
		*list = append(*list, "")
	}
	i := slices.Index(*list, name)
	if i < 0 {
		i = len(*list)
		*list = append(*list, name)
	}
	return i
}

// exclusion is why a candidate is out; of several reasons the greatest is named.
// The prefill-only workers that nothing else rules out are the candidates for
// the prefill leg.
type exclusion uint8

const (
	notOut exclusion = iota
	outPrefill
	outQueue
	outShare
	outKV
	outRequests
	outAdjust
	outModel
	outNotReady
	outRelay
	outSubset
)

func (x exclusion) String() string {
	return [...]string{
		"", "prefill only", "queue limit", "prefill share", "KV limit", "request limit", "excluded", "other model", "not ready", "relay",
		"not in the subset",
	}[x]
}

// standing is what rules a worker out whatever the request.
func standing(role kvindex.Role, ready bool) exclusion {
	switch {
	case role == kvindex.RoleRelay:
		return outRelay
	case !ready:
		return outNotReady
	case role == kvindex.RolePrefill:
		return outPrefill
	default:
		return notOut
	}
}

// maxShare is how many classes and menus are compared before a new one is made:
// a fleet has a few, or each endpoint its own.
const maxShare = 16

func (b *board) clear() {
	b.candidates, b.places = b.candidates[:0], b.places[:0]
	b.classes, b.menus, b.spots, b.hosts = b.classes[:0], b.menus[:0], b.spots[:0], false
	b.names.zones, b.names.racks, b.names.domains = b.names.zones[:0], b.names.racks[:0], b.names.domains[:0]
	b.split = false
}

// add appends an endpoint.
func (b *board) add(e *Endpoint, f *Fleet) {
	c := class{timing: e.Timing, kvBytes: e.KVBytesPerToken, blockSize: e.BlockSize}
	for t, speed := range e.LoadBytesPerSecond {
		if speed > 0 && t > int(kvindex.Device) {
			c.loads[t], c.slow = 1000*float64(c.kvBytes)/speed, true
		}
	}
	at := slices.Index(b.classes[:min(len(b.classes), maxShare)], c)
	if at < 0 {
		at = len(b.classes)
		b.classes = append(b.classes, c)
	}
	offered := slices.IndexFunc(b.menus[:min(len(b.menus), maxShare)], func(m menu) bool {
		return slices.Equal(m.served, e.Served) && slices.Equal(m.adapters, e.Adapters) && slices.Equal(m.loading, e.Loading)
	})
	if offered < 0 {
		offered = len(b.menus)
		b.menus = append(b.menus, menu{e.Served, e.Adapters, e.Loading})
	}
	where := spot{number(&b.names.zones, e.Zone), number(&b.names.racks, e.Rack), number(&b.names.domains, e.Domain)}
	stands := slices.Index(b.spots, where)
	if stands < 0 {
		stands = len(b.spots)
		b.spots = append(b.spots, where)
	}
	target := Target{Worker: e.Worker, Rank: e.Rank, Address: e.Address}
	n := candidate{
		queue: e.QueueMs, key: tieKey(&target), class: uint32(at), menu: uint32(offered), spot: uint32(stands),
		out: standing(e.Role, e.Ready),
	}
	n.figures(e.Requests, e.Decoding, e.ContextTokens, f, &e.Timing)
	n.reserve(e.KVTokens, e.Pledged, f)
	n.owed, n.spare = e.OwedMs, e.SpareMs
	b.split = b.split || e.Role == kvindex.RolePrefill
	b.candidates, b.places = append(b.candidates, n), append(b.places, placeOf(target))
	b.hosts = b.hosts || b.places[len(b.places)-1].host != b.places[0].host
}

// site is what a plan names once if it can: the candidate's host, or where all
// have the same, its address.
func (b *board) site(i int) uint64 {
	if b.hosts {
		return b.places[i].host
	}
	return b.places[i].address
}

func placeOf(t Target) place {
	return place{Target: t, host: xxh3.HashString(host(t.Address)), address: xxh3.HashString(t.Address)}
}

// host is an address without its port.
func host(address string) string {
	for i := len(address) - 1; i >= 0; i-- {
		if address[i] == ':' {
			return address[:i]
		}
	}
	return address
}

// locate is the place of a match's worker; -1 if it is not there.
func (b *board) locate(m *kvindex.Match) int {
	if int(m.Seat) < len(b.seats) {
		if i := int(b.seats[m.Seat]); i < len(b.places) && b.places[i].Worker == m.Worker && b.places[i].Rank == m.Rank {
			return i
		}
	}
	i := b.find(m.Worker, m.Rank)
	if i >= 0 && b.seats != nil && m.Seat < maxSeats {
		for len(b.seats) <= int(m.Seat) {
			b.seats = append(b.seats, 0)
		}
		b.seats[m.Seat] = int32(i)
		b.places[i].Worker = m.Worker // the same text in the index's memory: equal at a glance next time
	}
	return i
}

// find is the place of a worker's rank; -1 if it is not there.
func (b *board) find(worker kvindex.WorkerID, rank uint16) int {
	i, end := 0, len(b.places)
	for i < end {
		at := int(uint(i+end) >> 1)
		p := &b.places[at]
		if order := strings.Compare(string(p.Worker), string(worker)); order < 0 || order == 0 && p.Rank < rank {
			i = at + 1
		} else {
			end = at
		}
	}
	if i == len(b.places) || b.places[i].Worker != worker || b.places[i].Rank != rank {
		return -1
	}
	return i
}

// tieKey and tie order equal candidates: by a hash of the request's ID, the
// worker and its rank.
func tieKey(t *Target) uint64 {
	var rank [2]byte
	binary.LittleEndian.PutUint16(rank[:], t.Rank)
	return xxh3.HashSeed(rank[:], xxh3.HashString(string(t.Worker)))
}

func tie(key, seed uint64) uint64 {
	// Both sides are hashes already; the product mixes them.
	hi, lo := bits.Mul64(key|1, seed^0x9e3779b97f4a7c15)
	return hi ^ lo
}
