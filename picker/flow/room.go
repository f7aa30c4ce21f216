package flow

// load is a number of requests and their bytes.
type load struct {
	n     int
	bytes int64
}

func (l load) plus(m load) load  { return load{l.n + m.n, l.bytes + m.bytes} }
func (l load) minus(m load) load { return load{l.n - m.n, l.bytes - m.bytes} }

// within reports whether both are at most m's.
func (l load) within(m load) bool { return l.n <= m.n && l.bytes <= m.bytes }

// share is the larger of the shares of the two limits, times both: a whole number,
// at most 2^60.
func (q *Queue) share(l load) int64 {
	return max(int64(l.n)*q.limit.bytes, l.bytes*int64(q.limit.n))
}

// makeRoom pushes out what a request needs room for, into q.shed. With a reason it
// has not pushed out anybody. What it needs room for is at most a few requests,
// unless one holds the bytes of many.
func (q *Queue) makeRoom(it *Item) Reason {
	add := load{1, it.Bytes}
	a := ask{all: q.load.plus(add).minus(q.limit), band: add.minus(q.each), lower: q.below(it.Priority)}
	var own *band
	if i, ok := q.find(it.Priority); ok {
		own = q.bands[i]
		a.band = a.band.plus(own.load)
	}
	freed := load{}
	if !a.met(freed) {
		var ok bool
		if freed, ok = q.takeFromHog(own, q.nameOf(own, it.Tenant), add, a); !ok {
			return a.reason()
		}
	}
	for left := a.all.minus(freed); !left.within(load{}); {
		e := q.bands[len(q.bands)-1].hogs.top().newest
		left = left.minus(load{1, e.item.Bytes})
		q.pushOut(e)
	}
	return ""
}

// ask is what has to be freed, as far as it is positive: of all, and of the own band.
// lower is what the bands below can give.
type ask struct{ all, band, lower load }

// met reports whether it can be had once that much of the own band is free.
func (a ask) met(freed load) bool { return a.band.within(freed) && a.all.minus(freed).within(a.lower) }

func (a ask) reason() Reason {
	if a.band.n > 0 || a.all.n > a.lower.n {
		return ReasonFull
	}
	return ReasonBytes
}

// below is what the bands under a priority hold.
func (q *Queue) below(priority int) load {
	var l load
	for i := len(q.bands) - 1; i >= 0 && q.bands[i].priority < priority; i-- {
		l = l.plus(q.bands[i].load)
	}
	return l
}

// takeFromHog frees what is asked of a band by pushing out the newest requests of
// the tenant that holds most, if that one still holds no less than the tenant of that
// name, which gets add, afterwards. It frees that or nothing.
func (q *Queue) takeFromHog(b *band, name string, add load, a ask) (freed load, ok bool) {
	if b == nil || b.hogs.top().name == name {
		return load{}, false
	}
	hog, n := b.hogs.top(), 0
	for e := hog.newest; e != nil && !a.met(freed); e = e.older {
		freed = freed.plus(load{1, e.item.Bytes})
		n++
	}
	if t := b.tenants[name]; t != nil {
		add = add.plus(t.load)
	}
	if !a.met(freed) || q.share(hog.load.minus(freed)) < q.share(add) {
		return load{}, false
	}
	for range n {
		q.pushOut(hog.newest)
	}
	return freed, true
}

func (q *Queue) pushOut(e *entry) {
	q.shed = append(q.shed, Shed{Item: e.item, Reason: ReasonPushedOut})
	q.remove(e)
}
