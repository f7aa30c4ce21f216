package scoring

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	scorerv1 "github.com/kvlane/kvlane/api/scorer/v1"
	"github.com/kvlane/kvlane/picker"
)

// Config is a scorer out of process.
type Config struct {
	// Name is 1 to 64 letters, digits, - and _; each scorer has its own.
	Name string `yaml:"name"`
	// Address is where it answers gRPC: host:port or unix:/path.
	Address string `yaml:"address"`
	// Deadline is how long a choice waits for its answer; 100us to 1s, 5ms where the
	// file does not say it. Every request waits as long as the slowest scorer takes.
	Deadline time.Duration `yaml:"deadline"`
	// Headers are the names of the client's headers that are handed to it; none else
	// are.
	Headers []string `yaml:"headers"`
	// TLS has the connection encrypted and the server's certificate checked against
	// the machine's authorities.
	TLS bool `yaml:"tls"`
}

// DefaultDeadline is what a scorer has where the file does not say it: an answer on
// the same machine takes a fifth of a millisecond, one within a zone one or two.
const DefaultDeadline = 5 * time.Millisecond

// Validate lists every fault of a list of scorers, each with its place.
func Validate(list []Config) error {
	var faults []error
	if len(list) > maxScorers {
		faults = append(faults, fmt.Errorf("scorers: %d are more than %d", len(list), maxScorers))
	}
	names := make(map[string]bool, len(list))
	for i, c := range list {
		n := Named{Name: c.Name, Deadline: c.Deadline, Headers: c.Headers}
		for _, err := range n.faults() {
			faults = append(faults, fmt.Errorf("scorers[%d].%w", i, err))
		}
		if names[c.Name] {
			faults = append(faults, fmt.Errorf("scorers[%d].name: %q is given twice", i, c.Name))
		}
		names[c.Name] = true
		if _, _, err := net.SplitHostPort(c.Address); err != nil && !strings.HasPrefix(c.Address, "unix:") {
			faults = append(faults, fmt.Errorf("scorers[%d].address: %q is not host:port or unix:/path", i, c.Address))
		}
	}
	return errors.Join(faults...)
}

// remote asks a scorer over gRPC.
type remote struct {
	conn   *grpc.ClientConn
	client scorerv1.ScorerClient
}

// reconnect is how gRPC tries again: a scorer that comes back is to be found within
// seconds.
func reconnect() grpc.ConnectParams {
	return grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: 200 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 5 * time.Second},
		MinConnectTimeout: 2 * time.Second,
	}
}

// Dial is the scorer of a valid configuration. It connects when it is asked first.
func Dial(c Config) (Named, error) {
	security := insecure.NewCredentials()
	if c.TLS {
		security = credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS12})
	}
	conn, err := grpc.NewClient(c.Address, grpc.WithTransportCredentials(security), grpc.WithDisableServiceConfig(),
		grpc.WithConnectParams(reconnect()))
	if err != nil {
		return Named{}, fmt.Errorf("scorer %s: %w", c.Name, err)
	}
	return Named{Name: c.Name, Scorer: &remote{conn, scorerv1.NewScorerClient(conn)}, Deadline: c.Deadline, Headers: c.Headers}, nil
}

// Close ends the connection.
func (s *remote) Close() error { return s.conn.Close() }

// Score is one call. Until the connection stands, it waits for it as long as it may.
func (s *remote) Score(ctx context.Context, r *Request, candidates []Candidate) ([]picker.Adjust, error) {
	answer, err := s.client.Score(ctx, message(r, candidates))
	if err != nil {
		return nil, err
	}
	list := make([]picker.Adjust, 0, len(answer.GetAdjustments()))
	for _, a := range answer.GetAdjustments() {
		if int(a.GetCandidate()) >= len(candidates) {
			return nil, fmt.Errorf("%w: candidate %d of %d", errInvalid, a.GetCandidate(), len(candidates))
		}
		c := &candidates[a.GetCandidate()]
		list = append(list, picker.Adjust{Worker: c.Worker, Rank: c.Rank, Ms: a.GetMs(), Exclude: a.GetExclude()})
	}
	return list, nil
}

// text is what a client wrote in the form that gRPC takes.
func text(s string) string { return strings.ToValidUTF8(s, "\ufffd") }

func message(r *Request, candidates []Candidate) *scorerv1.ScoreRequest {
	m := &scorerv1.ScoreRequest{
		Id: text(r.ID), Model: text(r.Model), PromptTokens: uint32(r.PromptTokens), MaxOutputTokens: uint32(r.MaxOutputTokens),
		Session: text(r.Session), Tenant: text(r.Tenant), Priority: int32(r.Priority),
		Candidates: make([]*scorerv1.Candidate, 0, len(candidates)),
	}
	for _, h := range r.Headers {
		m.Headers = append(m.Headers, &scorerv1.Header{Name: h.Name, Value: text(h.Value)})
	}
	for i := range candidates {
		c := &candidates[i]
		m.Candidates = append(m.Candidates, &scorerv1.Candidate{
			Worker: string(c.Worker), Rank: uint32(c.Rank), Address: c.Address, Role: c.Role.String(),
			CachedTokens: uint32(c.CachedTokens), QueueMs: c.QueueMs, Requests: uint32(c.Requests),
			ContextTokens: uint64(c.ContextTokens), KvFreeTokens: int64(c.KVFree),
		})
	}
	return m
}
