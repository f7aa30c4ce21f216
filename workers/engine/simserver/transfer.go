package simserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
)

// transferParams are the members of kv_transfer_params that the simulated
// NIXL hand-off reads; clients may send more.
type transferParams struct {
	RemoteDecode    bool    `json:"do_remote_decode"`
	RemotePrefill   bool    `json:"do_remote_prefill"`
	RemoteEngineID  *string `json:"remote_engine_id"`
	RemoteRequestID *string `json:"remote_request_id"`
	RemoteHost      *string `json:"remote_host"`
	RemotePort      *int    `json:"remote_port"`
	RemoteTokens    *int    `json:"remote_num_tokens"`
}

// transferAnswer is what a prefill engine's answer carries for the decode
// engine, member by member as vLLM 0.32 has it. remote_host and remote_port
// are this server's own: its side channel is /sim/kv/pull.
type transferAnswer struct {
	RemotePrefill   bool     `json:"do_remote_prefill"`
	RemoteDecode    bool     `json:"do_remote_decode"`
	RemoteBlockIDs  [][]int  `json:"remote_block_ids"`
	RemoteEngineID  string   `json:"remote_engine_id"`
	RemoteRequestID string   `json:"remote_request_id"`
	RemoteHost      string   `json:"remote_host"`
	RemotePort      int      `json:"remote_port"`
	TPSize          int      `json:"tp_size"`
	DCPSize         int      `json:"dcp_size"`
	PPSize          int      `json:"pp_size"`
	RemoteTokens    int      `json:"remote_num_tokens"`
	Expiry          *float64 `json:"remote_blocks_expiry_time"`
	Mode            string   `json:"transfer_mode"`
}

// handOff describes a held prompt. The block ids are places in this engine's
// memory; the simulated transfer goes by request id and prompt.
func (s *Server) handOff(id string, h *hold) *transferAnswer {
	ids := make([]int, (h.tokens+s.cfg.BlockSize-1)/s.cfg.BlockSize)
	for i := range ids {
		ids[i] = i + 1
	}
	host, port, _ := net.SplitHostPort(s.Addr()) // the listener's own address
	n, _ := strconv.Atoi(port)                   // a number, for the same reason
	return &transferAnswer{
		RemotePrefill: true, RemoteBlockIDs: [][]int{ids}, RemoteEngineID: s.engineID, RemoteRequestID: id,
		RemoteHost: host, RemotePort: n, TPSize: s.tpSize, DCPSize: 1, PPSize: 1, RemoteTokens: h.tokens, Mode: "pull",
	}
}

// pullRequest asks a prefill engine for a prompt's KV.
type pullRequest struct {
	EngineID   string `json:"engine_id"`
	RequestID  string `json:"request_id"`
	PromptHash string `json:"prompt_hash"`
}

type pullAnswer struct {
	Tokens int `json:"tokens"`
}

// servePull is the prefill side of a transfer: it checks that this is the
// prompt that was prefilled, and lets go of its blocks.
func (s *Server) servePull(w http.ResponseWriter, r *http.Request) error {
	var in pullRequest
	if err := s.decode(w, r, &in); err != nil {
		return err
	}
	refuse := func(status int, format string, a ...any) error {
		return &apiError{Status: status, Type: "TransferError", Message: fmt.Sprintf(format, a...)}
	}
	if in.EngineID != s.engineID {
		return refuse(http.StatusConflict, "This is engine %s, not %.80s.", s.engineID, in.EngineID)
	}
	var h *hold
	err := s.engine.do(r.Context(), func() {
		if h = s.engine.held.byID[in.RequestID]; h == nil || h.promptHash != in.PromptHash {
			return
		}
		s.engine.held.remove(in.RequestID)
		s.engine.core.Release(s.engine.clock.now(), in.RequestID)
	})
	switch {
	case err != nil:
		return err
	case h == nil:
		return refuse(http.StatusNotFound, "No KV is held for request %.80s: it was pulled, has expired, or never existed.", in.RequestID)
	case h.promptHash != in.PromptHash:
		return refuse(http.StatusConflict, "The KV held for request %.80s is another prompt's.", in.RequestID)
	}
	return writeJSON(w, http.StatusOK, pullAnswer{h.tokens})
}

// pull is the decode side: the number of prompt tokens that come from the
// prefill engine. 0 without a hand-off, and where it failed and the policy is
// to recompute.
func (s *Server) pull(ctx context.Context, j *job) (int, error) {
	if j.Transfer == nil || !j.Transfer.RemotePrefill || len(j.prompts) != 1 {
		return 0, nil
	}
	tokens, err := s.fetch(ctx, j)
	if err == nil {
		return min(tokens, len(j.prompts[0])), nil
	}
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	s.engine.metrics.loadFailures.Inc()
	s.log.WarnContext(ctx, "pull of KV failed", "request", j.id, "policy", s.cfg.LoadFailure, "error", err)
	if s.cfg.LoadFailure == Fail {
		return 0, &apiError{Status: http.StatusInternalServerError, Type: "InternalServerError", Message: "KV load failed: " + err.Error()}
	}
	return 0, nil
}

// fetch asks the prefill engine named in the request.
func (s *Server) fetch(ctx context.Context, j *job) (int, error) {
	t := j.Transfer
	if t.RemoteHost == nil || t.RemotePort == nil || t.RemoteEngineID == nil || t.RemoteRequestID == nil {
		return 0, errors.New("remote_host, remote_port, remote_engine_id and remote_request_id are needed")
	}
	body, err := json.Marshal(pullRequest{
		EngineID: *t.RemoteEngineID, RequestID: *t.RemoteRequestID, PromptHash: promptHash(j.prompts[0], j.lora, j.salt),
	})
	if err != nil {
		return 0, fmt.Errorf("encode pull: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, pullTimeout)
	defer cancel()
	url := "http://" + net.JoinHostPort(*t.RemoteHost, strconv.Itoa(*t.RemotePort)) + "/sim/kv/pull"
	// The address comes from the client, as in vLLM: only agents speak to engines.
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return 0, fmt.Errorf("build pull: %w", err)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return 0, fmt.Errorf("pull: %w", err)
	}
	defer func() { _ = resp.Body.Close() }() // read only
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 4096))
	if err != nil {
		return 0, fmt.Errorf("pull: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("pull: status %d: %s", resp.StatusCode, bytes.TrimSpace(answer))
	}
	var got pullAnswer
	if err := json.Unmarshal(answer, &got); err != nil {
		return 0, fmt.Errorf("read pull answer: %w", err)
	}
	return got.Tokens, nil
}
