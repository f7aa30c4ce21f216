package protocol

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// Target is the picker under test and what its operator declares of it.
type Target struct {
	// Name is what reports call it; free text, best with a version.
	Name string
	// Address is the host:port of its ext_proc service.
	Address string
	// TLS connects with TLS and takes any certificate: pickers often sign their own.
	TLS bool
	// Health is the host:port of its gRPC health service; empty if there is none.
	Health string
	// Log is the host:port of the log of a kvlane picker. With it the suite makes
	// the endpoints known itself, and can take them away.
	Log string
	// Endpoints are the ip:port that the picker chooses from, all of them. With Log
	// they may be empty: the suite takes its own.
	Endpoints []string
	// Model is the model's name that the endpoints serve, for a picker that reads
	// bodies; empty for one that does not. With Log an empty one is [OwnModel].
	Model string
	// MaxBody is the largest request body that the picker reads, bytes; 0 if it has
	// no limit or the operator does not say.
	MaxBody int
	// MaxRequests is how many requests the picker gives each endpoint before it
	// sheds; 0 if it does not.
	MaxRequests int
	// BodyTimeout is how long the picker waits for the rest of a body; 0 if it does
	// for ever.
	BodyTimeout time.Duration
	// DuplexOnly says that the picker works in FULL_DUPLEX_STREAMED mode only.
	DuplexOnly bool
	// Envoy is the path of an Envoy; empty leaves out the checks that need one. The
	// suite then listens on the endpoints' addresses.
	Envoy string
}

// OwnModel is served by the endpoints that the suite writes to a log.
const OwnModel = "protocol-test"

// Options are how a run goes.
type Options struct {
	// Only runs the checks whose id matches; nil runs all.
	Only *regexp.Regexp
	// Timeout bounds the wait for one answer. A healthy picker needs milliseconds.
	Timeout time.Duration
	// Seed begins the random order of messages in checks that have one; 0 takes the
	// clock. A failure names the seed.
	Seed uint64
	// Progress is told each result as it comes; nil for nobody.
	Progress func(Result)
}

// DefaultTimeout is long enough for a busy machine.
const DefaultTimeout = 5 * time.Second

// Source says whose rule a check enforces.
type Source string

// The sources.
const (
	// FromProtocol is the endpoint picker protocol (GIE proposal 004, v1.0.0 and later).
	FromProtocol Source = "protocol"
	// FromEnvoy is what Envoy's ext_proc API says and Envoy enforces.
	FromEnvoy Source = "envoy"
	// FromStandard is HTTP or the gRPC health protocol.
	FromStandard Source = "standard"
	// FromUs is this project's own rule, for safety or for the user's sake.
	FromUs Source = "kvlane"
)

// Check is one rule and its test.
type Check struct {
	// ID is group/name.
	ID string
	// Rule is the rule in a sentence.
	Rule string
	// Source is whose rule it is.
	Source Source

	needs []need
	run   func(ctx context.Context, l *lab) error
}

// Checks are all checks in the order in which they run.
func Checks() []Check {
	return slices.Concat(orderChecks(), bodyChecks(), byteChecks(), modeChecks(), destinationChecks(), subsetChecks(),
		steeringChecks(), pathChecks(), responseChecks(), robustChecks(), streamChecks(), refusalChecks(), healthChecks(),
		envoyChecks(), envoyModeChecks(), envoyFaultChecks())
}

// Validate lists every fault of the target's description.
func (t Target) Validate() error {
	var faults []error
	if t.Address == "" {
		faults = append(faults, errors.New("target: want host:port"))
	}
	if t.Log == "" && len(t.Endpoints) == 0 {
		faults = append(faults, errors.New("endpoints: want the ip:port list that the picker chooses from (or a kvlane picker's log)"))
	}
	if t.MaxBody < 0 || t.MaxRequests < 0 || t.BodyTimeout < 0 {
		faults = append(faults, errors.New("limits: want 0 or more"))
	}
	for _, e := range t.Endpoints {
		if !isAddress(e) {
			faults = append(faults, fmt.Errorf("endpoint %q: want ip:port, an IPv6 address in brackets", e))
		}
	}
	return errors.Join(faults...)
}

// Run tests a target. An error says that the suite could not do its work; what the
// target does wrong is in the report.
func Run(ctx context.Context, t Target, o Options) (*Report, error) {
	if err := t.Validate(); err != nil {
		return nil, err
	}
	if o.Timeout <= 0 {
		o.Timeout = DefaultTimeout
	}
	l, err := newLab(ctx, t, o.Timeout)
	if err != nil {
		return nil, err
	}
	if l.seed = o.Seed; l.seed == 0 {
		l.seed = uint64(time.Now().UnixNano())
	}
	defer l.close(ctx)
	if !l.listens(ctx) {
		return nil, fmt.Errorf("nobody takes connections at %s", t.Address)
	}
	r := &Report{Target: l.target.Name, Address: t.Address, Date: time.Now().UTC().Truncate(time.Second)}
	for _, c := range Checks() {
		if o.Only != nil && !o.Only.MatchString(c.ID) {
			continue
		}
		res := l.one(ctx, c)
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		r.Results = append(r.Results, res)
		if o.Progress != nil {
			o.Progress(res)
		}
	}
	r.Envoy = l.envoyVersion
	return r, nil
}

// lab is what checks work with.
type lab struct {
	target  Target
	timeout time.Duration
	seed    uint64
	gone    string // the check in which the target ended
	conn    *grpc.ClientConn
	fleet   *fleet // nil without a log
	envoy   *rig   // nil until the first check that needs it
	noEnvoy error  // why the rig did not come up

	envoyVersion string
}

// notApplicable is a check's own finding that its rule could not be tried.
type notApplicable string

func (n notApplicable) Error() string { return string(n) }

func newLab(ctx context.Context, t Target, timeout time.Duration) (*lab, error) {
	if t.Name == "" {
		t.Name = t.Address
	}
	l := &lab{target: t, timeout: timeout}
	var err error
	if l.conn, err = dial(t.Address, t.TLS); err != nil {
		return nil, err
	}
	if t.Log == "" {
		return l, nil
	}
	if l.target.Model == "" {
		l.target.Model = OwnModel
	}
	if len(l.target.Endpoints) == 0 {
		l.target.Endpoints = ownEndpoints()
	}
	if l.fleet, err = newFleet(l); err != nil {
		l.close(ctx)
		return nil, err
	}
	if err := l.fleet.set(ctx, l.target.Endpoints); err != nil {
		l.close(ctx)
		return nil, err
	}
	return l, nil
}

func dial(address string, withTLS bool) (*grpc.ClientConn, error) {
	creds := insecure.NewCredentials()
	if withTLS {
		creds = credentials.NewTLS(anyCertificate())
	}
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(creds),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.5, MaxDelay: 500 * time.Millisecond},
			MinConnectTimeout: time.Second,
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20), grpc.MaxCallSendMsgSize(64<<20)))
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", address, err)
	}
	return conn, nil
}

// anyCertificate is how gateways connect to pickers that sign their own.
func anyCertificate() *tls.Config {
	return &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"}} //nolint:gosec // see above
}

func (l *lab) close(ctx context.Context) {
	if l.envoy != nil {
		l.envoy.close()
	}
	if l.fleet != nil {
		l.fleet.close(ctx)
	}
	_ = l.conn.Close() // nothing is under way
}

// one runs a check, if the target is there and has what it needs.
func (l *lab) one(ctx context.Context, c Check) Result {
	r := Result{ID: c.ID, Rule: c.Rule, Source: c.Source}
	if !l.connected(ctx) && l.gone != "" {
		r.Outcome, r.Reason = NotApplicable, "the target is gone since "+l.gone
		return r
	}
	for _, n := range c.needs {
		if why := l.lacks(ctx, n); why != "" {
			r.Outcome, r.Reason = NotApplicable, why
			return r
		}
	}
	start := time.Now()
	err := c.run(ctx, l)
	r.Ms = float64(time.Since(start).Microseconds()) / 1000
	if err == nil {
		r.Outcome = Passed
		return r
	}
	if why, ok := errors.AsType[notApplicable](err); ok {
		r.Outcome, r.Reason = NotApplicable, string(why)
		return r
	}
	r.Outcome = Failed
	f, ok := errors.AsType[*Failure](err)
	if !ok {
		f = &Failure{Got: err.Error()}
	}
	r.Failure = f
	if !l.listens(ctx) {
		f.Got += "; after that the target is gone"
		l.gone = c.ID
	}
	return r
}

// listens reports whether somebody takes connections at the target's address.
func (l *lab) listens(ctx context.Context) bool {
	conn, err := (&net.Dialer{Timeout: l.timeout}).DialContext(ctx, "tcp", l.target.Address)
	if err != nil {
		return false
	}
	_ = conn.Close() // nothing was sent
	return true
}

// connected reports whether the connection stands, after a while if the target is
// being started again.
func (l *lab) connected(ctx context.Context) bool {
	if s := l.conn.GetState(); l.gone == "" && (s == connectivity.Ready || s == connectivity.Idle) {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	l.conn.ResetConnectBackoff()
	for s := l.conn.GetState(); s != connectivity.Ready; s = l.conn.GetState() {
		l.conn.Connect()
		if !l.conn.WaitForStateChange(ctx, s) {
			return false
		}
	}
	if l.fleet != nil && l.fleet.set(ctx, l.target.Endpoints) != nil {
		return false
	}
	l.gone = ""
	return true
}
