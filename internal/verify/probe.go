package verify

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"

	"github.com/kvlane/kvlane/internal/epp"
	"github.com/kvlane/kvlane/kvindex"
)

// probe asks the engine for known prompts and compares how much of each was
// cached with what the indexes said just before, for those subjects that could
// not be compared otherwise.
func (v *verifier) probe(ctx context.Context, w epp.WorkerView, subjects []*subject) {
	subjects = slices.DeleteFunc(slices.Clone(subjects), func(s *subject) bool {
		return s.state != Unverifiable || len(s.sources) == 0
	})
	if len(subjects) == 0 {
		return
	}
	var err error
	for _, s := range subjects {
		s.probe = &Probe{}
		if len(s.sources) > 1 {
			err = errors.New("which of several ranks answers a prompt cannot be chosen")
		}
	}
	var known []prefix
	if err == nil {
		known, err = v.prefixes(ctx, w.Admin, v.opts.Probes)
	}
	if err == nil && len(known) == 0 {
		err = errors.New("no prompt of this engine is known from its start")
	}
	first := make([][]int, len(known))
	for i := range known {
		if err == nil {
			first[i], err = known[i].ask(ctx, subjects)
		}
	}
	for i := range known {
		if err == nil {
			err = v.probeOne(ctx, w.Address, &known[i], first[i], subjects)
		}
	}
	if err != nil {
		for _, s := range subjects {
			s.probe.Error = err.Error()
		}
	}
}

// ask is how many tokens of the prefix each subject's picker believes to be in
// the worker's fastest tier.
func (p *prefix) ask(ctx context.Context, subjects []*subject) ([]int, error) {
	root := kvindex.Namespace{Model: p.Model, LoRA: p.LoRA, Salt: p.Salt, BlockSize: p.BlockSize}.Root()
	chain := kvindex.AppendChain(nil, root, p.Tokens, p.BlockSize)
	out := make([]int, len(subjects))
	for i, s := range subjects {
		matches, err := s.client.Overlap(ctx, chain)
		if err != nil {
			return nil, err
		}
		for _, m := range matches {
			if m.Worker == s.worker {
				out[i] = int(m.Depth[kvindex.Device]) * p.BlockSize
			}
		}
	}
	return out, nil
}

// probeOne sends one prefix. An index may be a moment behind, so either of its
// two answers before may be the engine's.
func (v *verifier) probeOne(ctx context.Context, address string, p *prefix, first []int, subjects []*subject) error {
	second, err := p.ask(ctx, subjects)
	if err != nil {
		return err
	}
	cached, err := v.send(ctx, address, p)
	if err != nil {
		return err
	}
	for i, s := range subjects {
		s.probe.Asked++
		switch {
		case cached < 0:
			s.probe.Unsaid++
		case cached == first[i] || cached == second[i]:
			s.probe.Agreed++
		case cached < second[i]:
			s.probe.More++
		default:
			s.probe.Less++
		}
	}
	return nil
}

// send asks the worker for one token after the prefix and returns how many of the
// prompt's tokens its engine had cached, -1 if it does not say.
func (v *verifier) send(ctx context.Context, address string, p *prefix) (int, error) {
	model := p.Model
	if p.LoRA != "" {
		model = p.LoRA
	}
	body, err := json.Marshal(struct {
		Model     string   `json:"model"`
		Prompt    []uint32 `json:"prompt"`
		MaxTokens int      `json:"max_tokens"`
		Salt      string   `json:"cache_salt,omitempty"`
	}{
		// One token more than the prefix: an engine always computes the last one.
		Model: model, Prompt: append(slices.Clip(p.Tokens), p.Tokens[0]), MaxTokens: 1, Salt: p.Salt,
	})
	if err != nil {
		return 0, fmt.Errorf("write the prompt: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return 0, fmt.Errorf("build request: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := v.http.Do(req)
	if err != nil {
		return 0, fmt.Errorf("probe: %w", err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return 0, fmt.Errorf("read the probe's answer: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("probe: status %d: %.300s", resp.StatusCode, answer)
	}
	var out struct {
		Usage struct {
			Details *struct {
				Cached *int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		} `json:"usage"`
	}
	if err := json.Unmarshal(answer, &out); err != nil {
		return 0, fmt.Errorf("read the probe's answer: %w", err)
	}
	if out.Usage.Details == nil || out.Usage.Details.Cached == nil {
		return -1, nil
	}
	return *out.Usage.Details.Cached, nil
}
