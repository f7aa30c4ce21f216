package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
)

// peerName is the crate that is compared with.
const peerName = "dynamo-kv-router 1.6.1"

// peer is a running test/peers/dynamo-index, which answers commands. Where its
// program has not been built, every answer is zero.
type peer struct {
	absent bool
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Scanner
}

// answer is the union of what the peer's commands answer.
type answer struct {
	timing
	Store       float64 `json:"store"`
	Remove      float64 `json:"remove"`
	Rate        float64 `json:"rate"`
	US          float64 `json:"us"`
	BeforeUS    float64 `json:"before_us"`
	AfterUS     float64 `json:"after_us"`
	Local       float64 `json:"local"`
	Sequence    float64 `json:"sequence"`
	CPUNs       float64 `json:"cpu_ns"`
	Live        float64 `json:"live"`
	Resident    float64 `json:"resident"`
	Query       string  `json:"query"`
	Matched     int     `json:"matched"`
	Blocks      int     `json:"blocks"`
	Convs       int     `json:"conversations"`
	Memberships int     `json:"memberships"`
	Distinct    int     `json:"distinct"`
	End         bool    `json:"end"`
	Error       string  `json:"error"`
}

// startPeer starts one form of the peer's program, "timing" or "counting".
func startPeer(ctx context.Context, form string) (*peer, error) {
	path, err := peerPath(form)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return &peer{absent: true}, nil
	}
	p := &peer{cmd: exec.CommandContext(ctx, path)}
	p.cmd.Stderr = os.Stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("pipe: %w", err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("pipe: %w", err)
	}
	p.out = bufio.NewScanner(out)
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	return p, nil
}

// peerPath is where test/peers/dynamo-index/build puts a form of the program.
func peerPath(form string) (string, error) {
	cache := os.Getenv("KVLANE_CACHE")
	if cache == "" {
		dir, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("find the cache: %w", err)
		}
		cache = filepath.Join(dir, "kvlane")
	}
	return filepath.Join(cache, "dynamo-index", form, "release", "dynamo-index"), nil
}

// ask runs one command and returns its rows.
func (p *peer) ask(format string, args ...any) ([]answer, error) {
	if p.absent {
		return nil, nil
	}
	command := fmt.Sprintf(format, args...)
	if _, err := io.WriteString(p.in, command+"\n"); err != nil {
		return nil, fmt.Errorf("peer, %s: %w", command, err)
	}
	var rows []answer
	for p.out.Scan() {
		var a answer
		if err := json.Unmarshal(p.out.Bytes(), &a); err != nil {
			return nil, fmt.Errorf("peer, %s: %q: %w", command, p.out.Text(), err)
		}
		if a.Error != "" {
			return nil, fmt.Errorf("peer, %s: %s", command, a.Error)
		}
		if a.End {
			return rows, nil
		}
		rows = append(rows, a)
	}
	return nil, fmt.Errorf("peer, %s: it ended: %w", command, errors.Join(p.out.Err(), io.ErrUnexpectedEOF))
}

// one runs a command that answers one row.
func (p *peer) one(format string, args ...any) (answer, error) {
	rows, err := p.ask(format, args...)
	if err != nil {
		return answer{}, err
	}
	if p.absent {
		return answer{}, nil
	}
	if len(rows) != 1 {
		return answer{}, fmt.Errorf("peer, %s: %d rows, want 1", fmt.Sprintf(format, args...), len(rows))
	}
	return rows[0], nil
}

// stop ends the program.
func (p *peer) stop() error {
	if p.absent {
		return nil
	}
	if err := p.in.Close(); err != nil {
		return fmt.Errorf("stop the peer: %w", err)
	}
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("wait for the peer: %w", err)
	}
	return nil
}
