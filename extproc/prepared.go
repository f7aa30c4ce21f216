package extproc

import (
	"time"
	"unsafe"

	"github.com/kvlane/kvlane/internal/openai"
	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/picker"
)

// reread is how long what was read of a request that waits is used again: who holds
// its prompt changes meanwhile, and reading takes far longer than a pick.
const reread = 100 * time.Millisecond

// prepared is a request that is tried several times.
type prepared struct {
	scratch  scratch
	parsed   *openai.Request // nil: only the load counts
	decision Decision        // without a plan
	read     time.Time
}

// prepare reads a request and asks the scorers; their answers are used at every try.
// It keeps the body.
func (r *Router) prepare(now time.Time, a Ask) (*prepared, *Refusal) {
	p := &prepared{read: now}
	var refusal *Refusal
	if p.parsed, p.decision, refusal = r.begin(now, &a, &p.scratch); refusal != nil {
		return nil, refusal
	}
	return p, nil
}

// bytes is the memory that is held beside the body: token ids, and who holds the
// prompt.
func (p *prepared) bytes() int64 {
	n := int64(cap(p.scratch.chain)) * int64(unsafe.Sizeof(kvindex.BlockHash(0)))
	n += int64(cap(p.scratch.matches.list)+cap(p.scratch.matches.more)) * int64(unsafe.Sizeof(kvindex.Match{}))
	if p.parsed != nil {
		for _, ids := range p.parsed.TokenPrompts {
			n += int64(cap(ids)) * int64(unsafe.Sizeof(uint32(0)))
		}
	}
	return n
}

// try is Route for a request that was prepared.
func (r *Router) try(now time.Time, p *prepared) (Decision, *Refusal) {
	if p.parsed != nil && now.Sub(p.read) > reread {
		priority := p.decision.Priority
		p.scratch.request.ISL = 0
		p.decision, p.read = r.read(p.parsed, &p.scratch), now
		p.decision.Priority = priority
	}
	d := p.decision
	d.Plan = r.pool.Pick(&p.scratch.request, now)
	if !d.Plan.OK() {
		refusal := refusalOf(&d)
		return d, refusal
	}
	r.noteRewrite(&d)
	return d, nil
}

// prospect is what a prepared request may expect while no worker has room.
func (r *Router) prospect(now time.Time, p *prepared) picker.Prospect {
	return r.pool.Prospect(&p.scratch.request, now)
}

// lane names the workers that can serve a request: those of its base model.
func (r *Router) lane(d *Decision) string {
	model := d.served()
	if m, ok := r.pool.Model(model); ok {
		return m.Base
	}
	return model
}
