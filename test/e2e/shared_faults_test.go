package e2e_test

import (
	"syscall"
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/redistest"
)

var (
	// converge is within what time after a fault every index must be right.
	converge = lenient(5 * time.Second)
	// insideLimit is within what time a request ends that was inside a victim.
	insideLimit = lenient(time.Second)
	// pickLimit bounds a request that takes no engine time, whatever state Redis is
	// in: it holds a pick and two hops.
	pickLimit = lenient(2 * time.Second)
)

// faultCase is one thing that goes wrong and is put right again before run returns.
type faultCase struct {
	name string
	// redis: only Redis is wrong, so no request may fail or wait.
	redis bool
	run   func(*testing.T, *shared, *steadyLoad) []victim
}

// faultCases come one after the other on one stack. The cases of Redis are those of
// field case C17 and more.
func faultCases() []faultCase {
	proxied := func(m redistest.Mode, delay, length time.Duration) func(*testing.T, *shared, *steadyLoad) []victim {
		return func(t *testing.T, s *shared, l *steadyLoad) []victim {
			s.allProxies(m, delay)
			l.hold(t, length)
			s.allProxies(redistest.Pass, 0)
			return nil
		}
	}
	replicaCut := func(m redistest.Mode, length time.Duration) func(*testing.T, *shared, *steadyLoad) []victim {
		return func(t *testing.T, s *shared, l *steadyLoad) []victim {
			s.proxies[0].Set(m, 0)
			l.hold(t, length)
			s.proxies[0].Set(redistest.Pass, 0)
			return nil
		}
	}
	engines := func(fault string) func(*testing.T, *shared, *steadyLoad) []victim {
		return func(t *testing.T, s *shared, l *steadyLoad) []victim {
			for i := range s.workers {
				s.workers[i].fault(t, fault)
			}
			l.hold(t, time.Second)
			return nil
		}
	}
	return []faultCase{
		{"Healthy", true, func(t *testing.T, _ *shared, l *steadyLoad) []victim { l.hold(t, 3*time.Second); return nil }},
		// A new agent learns from an engine's events what it holds, and those begin to be
		// forgotten after 10,000 batches: these cases come first.
		{"AgentKilled", false, func(t *testing.T, s *shared, l *steadyLoad) []victim {
			v := s.agents[0].kill(t, string(s.workers[0].id))
			l.hold(t, time.Second)
			s.begin(t, s.agents[0])
			return []victim{v}
		}},
		{"EngineKilled", false, func(t *testing.T, s *shared, l *steadyLoad) []victim {
			v := s.engines[1].kill(t, string(s.workers[1].id))
			l.hold(t, time.Second)
			s.begin(t, s.engines[1])
			return []victim{v}
		}},
		{"ReplicaKilled", false, func(t *testing.T, s *shared, l *steadyLoad) []victim {
			v := s.pickers[1].kill(t, "")
			l.hold(t, time.Second)
			s.begin(t, s.pickers[1])
			return []victim{v}
		}},
		{"C17SlowRedis", true, proxied(redistest.Delay, 200*time.Millisecond, 3*time.Second)},
		{"C17SilentRedis", true, proxied(redistest.Stall, 0, 6*time.Second)},
		{"C17RefusedByRedis", true, proxied(redistest.Refuse, 0, 3*time.Second)},
		{"C17AnswersCut", true, proxied(redistest.CutAnswers, 0, 3*time.Second)},
		{"C17ReadOnlyRedis", true, func(t *testing.T, s *shared, l *steadyLoad) []victim {
			s.tellRedis(t, "REPLICAOF 127.0.0.1 1")
			l.hold(t, 3*time.Second)
			s.tellRedis(t, "REPLICAOF NO ONE")
			return nil
		}},
		{"FullRedis", true, func(t *testing.T, s *shared, l *steadyLoad) []victim {
			s.tellRedis(t, "CONFIG SET maxmemory 1")
			l.hold(t, 8*time.Second) // longer than a lease, which nobody can renew
			s.tellRedis(t, "CONFIG SET maxmemory 0")
			return nil
		}},
		{"StoppedRedis", true, func(t *testing.T, s *shared, l *steadyLoad) []victim {
			s.redis.signal(t, syscall.SIGSTOP)
			l.hold(t, 10*time.Second)
			s.redis.signal(t, syscall.SIGCONT)
			return nil
		}},
		{"FlushedRedis", true, func(t *testing.T, s *shared, l *steadyLoad) []victim {
			s.tellRedis(t, "FLUSHALL")
			l.hold(t, time.Second)
			return nil
		}},
		{"RedisKilledEmpty", true, restartRedis("no")},
		{"RedisKilledWithAOF", true, func(t *testing.T, s *shared, l *steadyLoad) []victim {
			s.tellRedis(t, "CONFIG SET appendonly yes")
			waitFor(t, "the first append-only file", patience, func() error {
				// It answers OK to a restart from the file only once that is written.
				return s.tryRedis("CONFIG SET appendonly yes", "+OK")
			})
			l.hold(t, time.Second)
			return restartRedis("yes")(t, s, l)
		}},
		{"ReplicaCutSilently", true, replicaCut(redistest.Stall, 6*time.Second)},
		{"ReplicaCutOff", true, replicaCut(redistest.Refuse, 3*time.Second)},
		{"EventsLost", false, engines(`{"kind":"drop-events","count":3}`)},
		{"EventsReordered", false, engines(`{"kind":"reorder-events","count":3}`)},
	}
}

// restartRedis kills Redis and starts it again, with or without its append-only
// file.
func restartRedis(appendOnly string) func(*testing.T, *shared, *steadyLoad) []victim {
	return func(t *testing.T, s *shared, l *steadyLoad) []victim {
		s.redis.kill(t, "")
		l.hold(t, 2*time.Second)
		s.redis.args[len(s.redis.args)-1] = appendOnly
		s.begin(t, s.redis)
		s.awaitRedis(t)
		return nil
	}
}

// TestFaults: whatever goes wrong, requests are answered, and shortly after it is
// right again every picker knows exactly what every engine holds.
func TestFaults(t *testing.T) {
	s := startShared(t)
	l := s.startLoad(t)
	var victims []victim
	for _, f := range faultCases() {
		t.Run(f.name, func(t *testing.T) {
			done := l.take() // of the case before: its errors belong here, too
			picks, seconds := s.picks(t)
			left := s.workersLeft(t)
			victims = append(victims, f.run(t, s, l)...)
			during := l.take()
			ended := time.Now()
			s.awaitWorkers(t) // what was killed is there again
			r := s.verify(t)
			looks := 0
			for _, row := range r.Rows {
				looks = max(looks, row.Looks)
			}
			t.Logf("right %v after the fault, at look %d", time.Since(ended).Round(time.Millisecond), looks)
			if !f.redis { // a picker that was killed counts from 0
				picks, seconds = 0, 0
			}
			n, total := s.picks(t)
			t.Logf("%s; %.0f picks took %.3f ms on average", latencies(during), n-picks, 1000*(total-seconds)/max(1, n-picks))
			if inside := s.judge(t, append(done, during...), victims); inside > 0 {
				t.Logf("%d requests were inside", inside)
			}
			if n := s.workersLeft(t); f.redis && n != left {
				t.Errorf("%d workers left a picker, and all were there", n-left)
			}
			for _, o := range during {
				if f.redis && o.probe && o.ended.Sub(o.began) > pickLimit {
					t.Errorf("%s took %v", o.id, o.ended.Sub(o.began))
				}
			}
		})
	}
	l.end()
	s.judge(t, l.take(), victims)
	s.verify(t) // and once when nothing moves
}
