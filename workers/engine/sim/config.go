package sim

import (
	"errors"
	"fmt"
	"math"
)

// validate lists all faults of a configuration.
func (c *Config) validate() error {
	var faults []error
	atLeast := func(name string, have, least int) {
		if have < least {
			faults = append(faults, fmt.Errorf("%s is %d, want at least %d", name, have, least))
		}
	}
	atLeast("BlockSize", c.BlockSize, 1)
	atLeast("Blocks", c.Blocks, 1)
	atLeast("MaxBatchedTokens", c.MaxBatchedTokens, 1)
	atLeast("MaxSeqs", c.MaxSeqs, 1)
	atLeast("MaxModelLen", c.MaxModelLen, 2)
	atLeast("KVBytesPerToken", c.KVBytesPerToken, 0)
	atLeast("HostBlocks", c.HostBlocks, 0)
	if c.Blocks > math.MaxInt32-1 {
		faults = append(faults, fmt.Errorf("too many blocks: Blocks is %d, want at most %d", c.Blocks, math.MaxInt32-1))
	}
	for _, v := range []struct {
		name  string
		value float64
	}{
		{"Timing.Prefill.A", c.Timing.Prefill.A}, {"Timing.Prefill.B", c.Timing.Prefill.B}, {"Timing.Prefill.G", c.Timing.Prefill.G},
		{"Timing.Decode.D", c.Timing.Decode.D}, {"Timing.Decode.E", c.Timing.Decode.E}, {"Timing.Decode.F", c.Timing.Decode.F},
		{"Transfer.SetupMs", c.Transfer.SetupMs},
	} {
		if !(v.value >= 0) || math.IsInf(v.value, 0) {
			faults = append(faults, fmt.Errorf("%s is %v, want a finite number of at least 0", v.name, v.value))
		}
	}
	if c.KVBytesPerToken > 0 && !(c.Transfer.BytesPerSecond > 0) {
		faults = append(faults, fmt.Errorf("Transfer.BytesPerSecond is %v, want more than 0", c.Transfer.BytesPerSecond))
	}
	if c.HostBlocks > 0 && !(c.HostBytesPerSecond > 0 && !math.IsInf(c.HostBytesPerSecond, 0)) {
		faults = append(faults, fmt.Errorf("HostBytesPerSecond is %v, want a finite number of more than 0", c.HostBytesPerSecond))
	}
	if c.Next == nil {
		faults = append(faults, errors.New("the function Next is missing"))
	}
	if err := errors.Join(faults...); err != nil {
		return fmt.Errorf("simulated engine: %w", err)
	}
	return nil
}

// Fault is why a request was refused.
type Fault uint8

// The reasons to refuse a request.
const (
	// Invalid: an empty prompt or id, fewer than one token to generate, or a
	// negative number.
	Invalid Fault = iota + 1
	// TooLong: prompt and output exceed the model's length or all blocks.
	TooLong
	// Duplicate: a request of that id is running, waiting or held.
	Duplicate
)

// RequestError says that Submit refused a request and left no trace of it.
type RequestError struct {
	ID     string
	Fault  Fault
	Detail string
}

func (e *RequestError) Error() string { return fmt.Sprintf("request %q: %s", e.ID, e.Detail) }

// check returns a *RequestError if the request cannot be served.
func (c *Config) check(r *Request) error {
	refuse := func(f Fault, format string, args ...any) error {
		return &RequestError{ID: r.ID, Fault: f, Detail: fmt.Sprintf(format, args...)}
	}
	switch {
	case r.ID == "":
		return refuse(Invalid, "the id is empty")
	case r.length() < 1:
		return refuse(Invalid, "the prompt is empty")
	case len(r.Content) > 0 && len(r.Prompt) > 0:
		return refuse(Invalid, "both tokens and names of blocks")
	case len(r.Prompt) == 0 && len(r.Content) < r.PromptTokens/c.BlockSize:
		return refuse(Invalid, "%d names for a prompt of %d tokens, want one for each of %d full blocks",
			len(r.Content), r.PromptTokens, r.PromptTokens/c.BlockSize)
	case r.MaxTokens < 1:
		return refuse(Invalid, "%d tokens to generate, want at least 1", r.MaxTokens)
	case r.MinTokens < 0 || r.RemoteTokens < 0:
		return refuse(Invalid, "a negative number of tokens")
	}
	// MaxTokens may be as large as an int: subtract, do not add.
	if room := c.MaxModelLen - r.length(); r.MaxTokens > room {
		return refuse(TooLong, "%d prompt tokens and %d to generate exceed the model's length of %d tokens", r.length(), r.MaxTokens, c.MaxModelLen)
	}
	// The last token generated is never an input, so it takes no place.
	if have, want := c.Blocks, blocksFor(r.length()+r.MaxTokens-1, c.BlockSize); want > have {
		return refuse(TooLong, "%d prompt tokens and %d to generate take %d blocks of %d tokens, the cache has %d",
			r.length(), r.MaxTokens, want, c.BlockSize, have)
	}
	return nil
}

// length is the prompt's, in tokens.
func (r *Request) length() int {
	if len(r.Prompt) > 0 {
		return len(r.Prompt)
	}
	return r.PromptTokens
}

// blocksFor is how many blocks hold that many tokens.
func blocksFor(tokens, blockSize int) int { return (tokens + blockSize - 1) / blockSize }
