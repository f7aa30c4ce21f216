package simserver

import (
	"net"
	"net/http"
	"sync"
)

// faultRequest is the body of /sim/fault.
type faultRequest struct {
	// Kind is crash, hang, slow, drop-events, reorder-events, garbage, restart or
	// none. none ends hang, slow, drop-events, reorder-events and garbage.
	Kind string `json:"kind"`
	// Factor is how many times longer steps take (slow); above 0.
	Factor float64 `json:"factor"`
	// Count is for how many batches (drop-events, reorder-events) or requests
	// (garbage).
	Count int `json:"count"`
	// Forget keeps dropped batches from the replay ring too.
	Forget bool `json:"forget"`
}

// faults are those that HTTP handlers have to know of. It is safe for
// concurrent use.
type faults struct {
	mu      sync.Mutex
	hung    chan struct{} // closed when a hang ends; nil without one
	garbage int           // answers still to garble
}

func (f *faults) hang() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.hung == nil {
		f.hung = make(chan struct{})
	}
}

func (f *faults) garble1() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.garbage == 0 {
		return false
	}
	f.garbage--
	return true
}

func (f *faults) setGarbage(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.garbage = n
}

func (f *faults) clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.garbage = 0
	if f.hung != nil {
		close(f.hung)
		f.hung = nil
	}
}

// gate keeps requests waiting while the engine hangs, /health too.
func (f *faults) gate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		hung := f.hung
		f.mu.Unlock()
		if hung != nil {
			select {
			case <-hung:
			case <-r.Context().Done():
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// garble answers with what is no JSON, as a broken proxy or a dying engine does.
func (f *faults) garble(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !f.garble1() {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte("\x00\xff{\"choices\": <html>")) // a client that is gone misses nothing
	})
}

// loopbackOnly refuses everyone but programs of the same machine. An agent is one,
// and passes on what clients of a gateway ask; gateways say so in a header.
func loopbackOnly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.RemoteAddr)
		if ip := net.ParseIP(host); err != nil || ip == nil || !ip.IsLoopback() || r.Header.Get("X-Forwarded-Proto") != "" {
			http.Error(w, "only from the same machine", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// fault injects or ends a fault.
func (s *Server) fault(w http.ResponseWriter, r *http.Request) error {
	var in faultRequest
	if err := s.decode(w, r, &in); err != nil {
		return err
	}
	s.log.WarnContext(r.Context(), "fault", "kind", in.Kind, "factor", in.Factor, "count", in.Count)
	rate := s.cfg.Speed
	switch in.Kind {
	case "crash":
		if s.cfg.Exit == nil {
			return badRequest("kind", "This engine cannot crash: it is part of another process.")
		}
		s.cfg.Exit(1)
		return nil
	case "hang":
		s.faults.hang()
		rate = 0
	case "slow":
		if !(in.Factor > 0 && in.Factor <= 1e6) {
			return badRequest("factor", "factor must be above 0 and at most 1e6, got %v.", in.Factor)
		}
		rate /= in.Factor
	case "drop-events", "reorder-events", "garbage":
		if in.Count < 1 {
			return badRequest("count", "count must be at least 1, got %d.", in.Count)
		}
		switch in.Kind {
		case "garbage":
			s.faults.setGarbage(in.Count)
		case "drop-events":
			s.pub.lose(in.Count, in.Forget)
		default:
			s.pub.reorder(in.Count)
		}
		return writeJSON(w, http.StatusOK, in)
	case "restart":
		s.faults.clear()
		if err := s.engine.do(r.Context(), s.engine.restart); err != nil {
			return err
		}
		return writeJSON(w, http.StatusOK, in)
	case "none":
		s.faults.clear()
		s.pub.lose(0, false)
		s.pub.reorder(0)
	default:
		return badRequest("kind", "kind must be crash, hang, slow, drop-events, reorder-events, garbage, restart or none, got %.40q.", in.Kind)
	}
	if err := s.engine.do(r.Context(), func() { s.engine.clock.setRate(rate) }); err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, in)
}
