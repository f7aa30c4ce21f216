package picker

import (
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvlane/kvlane/kvindex"
)

// sessions remember which worker each session's last request went to, so that its
// next one is drawn there. It is a preference of some milliseconds and no pin: a
// busy worker loses the session, one that is gone keeps nothing.
//
// What it is worth comes on top of the blocks that the index knows: what the last
// answer left in the cache and nobody has reported yet, and what is not learned at
// all (reasoning, tool markup). Replicas share no sessions: one that has not seen a
// session prices its requests by the blocks in the log, which all replicas have.
//
// Invariant: no more than max sessions, in the order of their last use; a session
// that was not used for ttl is as if it had never been.
type sessions struct {
	max  int
	ttl  time.Duration
	byID map[sessionKey]*session
	// newest and oldest are the ends of the list.
	newest, oldest *session
}

// sessionKey stands for a session's name and the model it uses: an agent that
// talks to two models has a worker for each. It is zero for no session.
type sessionKey struct{ hi, lo uint64 }

type session struct {
	key    sessionKey
	worker kvindex.WorkerID
	rank   uint16
	used   time.Time

	newer, older *session
}

func newSessions(limit int, ttl time.Duration) sessions {
	return sessions{max: limit, ttl: ttl, byID: make(map[sessionKey]*session)}
}

// keyOf is the session of a request.
func keyOf(req *Request) sessionKey {
	if req.Session == "" {
		return sessionKey{}
	}
	h := xxh3.HashString128Seed(req.Session, xxh3.HashString(req.Model))
	return sessionKey{h.Hi, h.Lo | 1}
}

// find is where a session's last request went.
func (s *sessions) find(key sessionKey, now time.Time) (kvindex.WorkerID, uint16, bool) {
	e := s.byID[key]
	if e == nil || now.Sub(e.used) >= s.ttl {
		return "", 0, false
	}
	return e.worker, e.rank, true
}

// note says where a session's newest request went. The sessions that are over
// leave; if there are still too many, the one that was used longest ago.
func (s *sessions) note(key sessionKey, worker kvindex.WorkerID, rank uint16, now time.Time) {
	if key == (sessionKey{}) || s.max == 0 {
		return
	}
	e := s.byID[key]
	if e == nil {
		for s.oldest != nil && now.Sub(s.oldest.used) >= s.ttl {
			s.drop(s.oldest)
		}
		e = s.enter()
		e.key, s.byID[key] = key, e
	} else {
		s.unlink(e)
	}
	e.worker, e.rank, e.used = worker, rank, now
	e.older, e.newer = s.newest, nil
	if s.newest != nil {
		s.newest.newer = e
	} else {
		s.oldest = e
	}
	s.newest = e
}

// enter is room for one more, in no list.
func (s *sessions) enter() *session {
	if len(s.byID) < s.max {
		return new(session)
	}
	e := s.oldest
	s.drop(e)
	return e
}

func (s *sessions) drop(e *session) {
	s.unlink(e)
	delete(s.byID, e.key)
}

func (s *sessions) unlink(e *session) {
	if e.newer != nil {
		e.newer.older = e.older
	} else {
		s.newest = e.older
	}
	if e.older != nil {
		e.older.newer = e.newer
	} else {
		s.oldest = e.newer
	}
	e.newer, e.older = nil, nil
}

// live is how many sessions are not over at a time.
func (s *sessions) live(now time.Time) int {
	n := len(s.byID)
	for e := s.oldest; e != nil && now.Sub(e.used) >= s.ttl; e = e.newer {
		n--
	}
	return n
}

// maxPreferenceMs bounds what a session or a return counts for: a minute is more
// than any price that is worth paying.
const maxPreferenceMs = 60_000

func (c Config) validateSessions(fault func(format string, args ...any)) {
	if !(c.SessionMs >= 0 && c.SessionMs <= maxPreferenceMs) {
		fault("sessionMs: %v is not within 0 to %d", c.SessionMs, maxPreferenceMs)
	}
	if c.SessionTTL < time.Millisecond {
		fault("sessionTTL: %v is less than 1ms", c.SessionTTL)
	}
	if c.MaxSessions < 1 || c.MaxSessions > 1<<24 {
		fault("maxSessions: %d is not within 1 to %d", c.MaxSessions, 1<<24)
	}
}
