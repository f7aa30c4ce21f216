package protocol

import (
	"context"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/kvindex/memlog"
)

// fleet makes endpoints known to a kvlane picker, through its log.
type fleet struct {
	lab     *lab
	log     *memlog.Client
	life    int // workers of an earlier set are others
	present map[kvindex.WorkerID]string
}

// lease is how long an endpoint stays if the suite is killed.
const lease = 10 * time.Minute

// ownEndpoints are addresses for documentation: the suite sends nothing there.
func ownEndpoints() []string {
	return []string{"192.0.2.10:8000", "192.0.2.11:8000", "[2001:db8::10]:8000"}
}

func newFleet(l *lab) (*fleet, error) {
	log, err := memlog.Dial(l.target.Log)
	if err != nil {
		return nil, err
	}
	return &fleet{lab: l, log: log, present: make(map[kvindex.WorkerID]string)}, nil
}

// set makes exactly these endpoints ready and waits until the picker shows it.
func (f *fleet) set(ctx context.Context, addresses []string) error {
	ctx, cancel := context.WithTimeout(ctx, 4*f.lab.timeout)
	defer cancel()
	var records []kvindex.Record
	gone := make(map[string]bool)
	for w, address := range f.present {
		records = append(records, kvindex.Record{Owner: kvindex.Owner{Worker: w}, Epoch: 1, Term: 1, Kind: kvindex.KindBye})
		gone[address] = true
	}
	clear(f.present)
	f.life++
	for i, address := range addresses {
		w := kvindex.WorkerID(fmt.Sprintf("protocol-test-%d-%d-%d", time.Now().UnixNano(), f.life, i))
		records = append(records, kvindex.Record{Owner: kvindex.Owner{Worker: w}, Epoch: 1, Term: 1, Kind: kvindex.KindHello,
			Hello: &kvindex.Hello{
				Address: address, Ready: true, Model: f.lab.target.Model, Served: []string{f.lab.target.Model},
				BlockSize: 16, KVBlocks: 10_000, LeaseMs: uint32(lease.Milliseconds()),
			}})
		f.present[w] = address
		delete(gone, address)
	}
	if err := f.log.Append(ctx, records); err != nil {
		return fmt.Errorf("write the endpoints to the log %s: %w", f.lab.target.Log, err)
	}
	for _, address := range addresses {
		if err := f.lab.eventually(ctx, func() error { return f.lab.only(ctx, address).goesTo(address) }); err != nil {
			return fmt.Errorf("the picker does not know the endpoint %s: %w", address, err)
		}
	}
	for address := range gone {
		if err := f.lab.eventually(ctx, func() error { return f.lab.only(ctx, address).refused(503) }); err != nil {
			return fmt.Errorf("the picker still knows the endpoint %s: %w", address, err)
		}
	}
	return nil
}

// only asks for one endpoint.
func (l *lab) only(ctx context.Context, address string) *trace {
	return l.play(ctx, get(modelsPath).within(list(address)).message())
}

// close takes the endpoints away, also if ctx is over.
func (f *fleet) close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), f.lab.timeout)
	defer cancel()
	var records []kvindex.Record
	for w := range f.present {
		records = append(records, kvindex.Record{Owner: kvindex.Owner{Worker: w}, Epoch: 1, Term: 1, Kind: kvindex.KindBye})
	}
	_ = f.log.Append(ctx, records) // their leases end them otherwise
	_ = f.log.Close()
}
