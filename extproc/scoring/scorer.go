package scoring

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/picker"
)

// Scorer has an opinion on where a request should go. It returns adjustments for
// some of the candidates, or none; it returns soon after ctx ends, and keeps none of
// its arguments. It is called by many goroutines at once.
type Scorer interface {
	Score(ctx context.Context, r *Request, candidates []Candidate) ([]picker.Adjust, error)
}

// Request is what a scorer learns of a request.
type Request struct {
	ID string
	// Model is the name that the worker is asked for, after a rewrite; empty where
	// the body was not read.
	Model string
	// PromptTokens is exact for token ids, else an estimate; 0 where the body was not
	// read. MaxOutputTokens is 0 if the request does not say.
	PromptTokens, MaxOutputTokens int
	Session, Tenant               string
	Priority                      int // higher first
	// Headers are those that the scorer's configuration lets through, names in lower
	// case, in the order of the request.
	Headers []Header
}

// Header is one header of the client.
type Header struct{ Name, Value string }

// Candidate is an endpoint that is ready and serves the model. What else rules it out
// (limits, ejection) is decided later.
type Candidate struct {
	Worker  kvindex.WorkerID
	Rank    uint16
	Address string // ip:port
	Role    kvindex.Role
	// CachedTokens of the prompt need no prefill there.
	CachedTokens int
	// QueueMs is the predicted time until a prefill starts there, ms.
	QueueMs float64
	// Requests are running and waiting there, ContextTokens the resident tokens of
	// decoding sequences, KVFree the room for new blocks in tokens, -1 unknown.
	Requests, ContextTokens, KVFree int
}

// Named is a scorer with what the picker has to know of it.
type Named struct {
	// Name is 1 to 64 letters, digits, - and _, for metrics and reasons.
	Name   string
	Scorer Scorer
	// Deadline is how long a choice waits for it; 100us to 1s.
	Deadline time.Duration
	// Headers are the names of the client's headers that it may see.
	Headers []string
}

// Bounds of a scorer's configuration.
const (
	minDeadline = 100 * time.Microsecond
	maxDeadline = time.Second
	maxName     = 64
	maxScorers  = 16
	maxHeaders  = 32
)

// maxReason is the most that is kept of a reason to rule a candidate out, bytes.
const maxReason = 80

func (n *Named) faults() []error {
	var faults []error
	if !isName(n.Name) {
		faults = append(faults, fmt.Errorf("name: %.80q is not 1 to %d of letters, digits, - and _", n.Name, maxName))
	}
	if n.Deadline < minDeadline || n.Deadline > maxDeadline {
		faults = append(faults, fmt.Errorf("deadline: %v is not within %v to %v", n.Deadline, minDeadline, maxDeadline))
	}
	if len(n.Headers) > maxHeaders {
		faults = append(faults, fmt.Errorf("headers: %d are more than %d", len(n.Headers), maxHeaders))
	}
	for _, h := range n.Headers {
		if h == "" || strings.HasPrefix(h, ":") || strings.ContainsAny(h, " \t\r\n") {
			faults = append(faults, fmt.Errorf("headers: %.80q is not a header's name", h))
		}
	}
	return faults
}

func isName(s string) bool {
	for _, c := range []byte(s) {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !letter && (c < '0' || c > '9') && c != '-' && c != '_' {
			return false
		}
	}
	return s != "" && len(s) <= maxName
}

var errInvalid = errors.New("not an answer")

// checked is a scorer's answer as a pick takes it: reasons begin with the scorer's
// name. An answer with a number that is not finite, or with more entries than could
// mean anything, is refused as a whole.
func checked(name string, list []picker.Adjust, candidates int) ([]picker.Adjust, error) {
	if len(list) > 4*candidates {
		return nil, fmt.Errorf("%w: %d adjustments for %d candidates", errInvalid, len(list), candidates)
	}
	for i := range list {
		a := &list[i]
		if math.IsNaN(a.Ms) || math.IsInf(a.Ms, 0) {
			return nil, fmt.Errorf("%w: %v ms", errInvalid, a.Ms)
		}
		if a.Exclude != "" {
			reason := strings.ToValidUTF8(a.Exclude[:min(len(a.Exclude), maxReason)], "")
			a.Exclude = name + ": " + reason
		}
	}
	return list, nil
}
