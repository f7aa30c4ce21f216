package epp

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvlane/kvlane/internal/redistest"
	"github.com/kvlane/kvlane/internal/timing"
	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/kvindex/memlog"
	"github.com/kvlane/kvlane/kvindex/redislog"
	"github.com/kvlane/kvlane/picker"
)

// faultyLog is the memory log with a fault in front of Append.
type faultyLog struct {
	*memlog.Log
	batches int
	fault   func(context.Context) error
}

func (l *faultyLog) Append(ctx context.Context, records []kvindex.Record) error {
	l.batches++
	if err := l.fault(ctx); err != nil {
		return err
	}
	return l.Log.Append(ctx, records)
}

var errAway = errors.New("away")

// pickers are two replicas' pools with one worker.
func pickers(t *testing.T) (own, other *picker.Pool) {
	t.Helper()
	pool := func(replica string) *picker.Pool {
		c := picker.DefaultConfig()
		c.Replica = replica
		p := picker.NewPool(c, timing.Known())
		p.Apply(&kvindex.Record{
			Owner: kvindex.Owner{Worker: "w"}, Epoch: 1, Term: 1, Kind: kvindex.KindHello,
			Hello: &kvindex.Hello{Address: "192.0.2.1:8000", Ready: true, Model: "m", Served: []string{"m"}, BlockSize: 16, LeaseMs: 3_600_000},
		}, time.Now())
		return p
	}
	return pool("a"), pool("b")
}

func pick(t *testing.T, p *picker.Pool, id int) {
	t.Helper()
	plan := p.Pick(&picker.Request{ID: fmt.Sprint(id), Model: "m", ISL: 100}, time.Now())
	if !plan.OK() {
		t.Fatalf("refused: %s", plan.Reason)
	}
}

func requests(p *picker.Pool) int { return p.Fleet(time.Now()).Endpoints[0].Requests }

// Another replica sees a burst of picks within two milliseconds, and their ends.
func TestAnnounce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own, other := pickers(t)
		log := &faultyLog{Log: memlog.New(memlog.Options{}), fault: func(context.Context) error { return nil }}
		ctx, cancel := context.WithCancel(t.Context())
		a := &announcer{pool: own, log: log}
		done := make(chan error, 2)
		go func() { done <- a.run(ctx) }()
		go func() {
			done <- log.Tail(ctx, func(records []kvindex.Record) error {
				for i := range records {
					other.Apply(&records[i], time.Now())
				}
				return nil
			})
		}()
		for i := range 100 {
			pick(t, own, i)
		}
		time.Sleep(2 * coalesce) //nolint:forbidigo // the bubble's clock
		synctest.Wait()
		if n := requests(other); n != 100 || log.batches != 1 {
			t.Errorf("the other replica counts %d requests, after %d batches", n, log.batches)
		}
		for i := range 99 {
			own.Close(fmt.Sprint(i), time.Now())
		}
		time.Sleep(2 * coalesce) //nolint:forbidigo // the bubble's clock
		synctest.Wait()
		if n := requests(other); n != 1 {
			t.Errorf("%d requests after 99 ended", n)
		}
		own.Close("99", time.Now()) // and at once the end
		cancel()
		for range 2 {
			if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
		if sent, dropped := a.sent.Load(), a.dropped.Load(); sent != 200 || dropped != 0 {
			t.Errorf("sent %d, dropped %d", sent, dropped)
		}
	})
}

// A log that hangs or fails costs bookings, which are counted, and no pick waits.
func TestAnnounceToDeadLog(t *testing.T) {
	for name, fault := range map[string]func(context.Context) error{
		"hangs": func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
		"fails": func(context.Context) error { return errAway },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				own, _ := pickers(t)
				log := &faultyLog{Log: memlog.New(memlog.Options{}), fault: fault}
				ctx, cancel := context.WithCancel(t.Context())
				a := &announcer{pool: own, log: log}
				done := make(chan error, 1)
				go func() { done <- a.run(ctx) }()
				for i := range 1000 {
					begun := time.Now()
					pick(t, own, i)
					if took := time.Since(begun); took != 0 {
						t.Fatalf("a pick waited %v", took)
					}
					time.Sleep(coalesce) //nolint:forbidigo // the bubble's clock
				}
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
				if sent, dropped := a.sent.Load(), a.dropped.Load(); sent != 0 || dropped < 1000 {
					t.Errorf("sent %d, dropped %d", sent, dropped)
				}
				if log.batches > 15 {
					t.Errorf("it was tried %d times in a second", log.batches)
				}
			})
		})
	}
}

// TestC17MemoryOfAStall: Redis accepts and does not answer while as many requests are
// picked and closed as in ten minutes of 500 a second, as fast as that goes. What
// waits to be told to other replicas stays within its bound, and every announcement
// is told, dropped, or waiting.
func TestC17MemoryOfAStall(t *testing.T) {
	const (
		picks = 10 * 60 * 500
		most  = 1 << 16 // announcements in the pool's outbox
	)
	server := redistest.Start(t, redistest.Options{})
	proxy := redistest.NewProxy(t, server.Addr)
	log, err := redislog.New(redislog.Options{URL: "redis://" + proxy.Addr})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }() // nothing is left to write
	proxy.Set(redistest.Stall, 0)
	own, _ := pickers(t)
	a := &announcer{pool: own, log: log}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = a.run(ctx) }() // ends with ctx
	for i := range picks {
		pick(t, own, i)
		own.Close(fmt.Sprint(i), time.Now())
	}
	cancel()
	<-done
	waiting := len(own.Outbox(nil))
	s := own.Stats(time.Now())
	t.Logf("%d picks: %d announced, %d told, %d dropped, %d waiting, %d not made; room for %d",
		picks, s.Announced, a.sent.Load(), a.dropped.Load(), waiting, s.Unsent, cap(a.records))
	if s.Announced != a.sent.Load()+a.dropped.Load()+uint64(waiting) || s.Announced+s.Unsent != 2*picks {
		t.Error("announcements are missing")
	}
	if waiting > most || cap(a.records) > 2*most || a.sent.Load() > 0 || s.Bookings > 0 {
		t.Errorf("%d waiting, room for %d, %d told, %d bookings", waiting, cap(a.records), a.sent.Load(), s.Bookings)
	}
}
